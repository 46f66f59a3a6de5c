"""How many collectives each process group of this process has begun."""

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from mm_dist._process_group._group_timeouts import read_group_timeout

# Older torch begins to count somewhere in the 31-bit numbers, the same on all ranks.
_RANDOM_START = 2**20


class Count(NamedTuple):
    """torch's own count of the collectives of one group.

    Attributes:
        value: The count; gloo's includes sends and receives in some versions of torch.
        backend: Who counts: ``gloo``, ``nccl``, ...
    """

    value: int
    backend: str


def read_counts() -> dict[str, Count]:
    """Map each group that this process belongs to, to torch's count of its collectives.

    A group with one backend per device, as ``cpu:gloo,cuda:nccl``, has an entry for each, called
    ``name/device:backend``. Groups whose backend does not count are missing.
    """
    counts: dict[str, Count] = {}
    for group, description in list(_registry("_pg_map").items()):
        name = str(_registry("_pg_names").get(group, ""))
        for part, counted in _counted_parts(group, str(description[0])):
            try:
                value = int(counted._get_sequence_number_for_group())  # noqa: SLF001 (no other way)
            except (RuntimeError, AttributeError):
                continue
            key = f"{name}/{part}" if ":" in part else name
            counts[key] = Count(value, part.rpartition(":")[2])
    return counts


def _counted_parts(group: Any, backends: str) -> list[tuple[str, Any]]:
    if ":" not in backends or not hasattr(group, "_get_backend"):
        return [(backends, group)]
    parts = backends.split(",")
    return [(part, group._get_backend(torch.device(part.partition(":")[0]))) for part in parts]  # noqa: SLF001


def read_timeouts() -> dict[str, float]:
    """Map the name of each group of this process to its timeout in seconds, if torch tells it."""
    timeouts = {}
    for group in list(_registry("_pg_map")):
        timeout = read_group_timeout(group)
        if timeout is not None:
            timeouts[str(_registry("_pg_names").get(group, ""))] = timeout.total_seconds()
    return timeouts


def find_start(value: int) -> int:
    """Return the count that a group began with, given its count when it was new."""
    return value if value > _RANDOM_START else 0


def group_of(key: str) -> str:
    """Return the name of the group that a key of ``read_counts`` belongs to."""
    return key.partition("/")[0]


def default_group_name() -> str:
    """Return the name under which ``read_counts`` knows the group of all ranks."""
    return str(_registry("_pg_names").get(dist.group.WORLD, ""))


def group_members() -> dict[str, list[int]]:
    """Map the name of each group of this process to its ranks, as numbered among all."""
    names = _registry("_pg_names")
    members = list(_registry("_pg_group_ranks").items())
    return {str(names[group]): sorted(ranks) for group, ranks in members if group in names}


def _registry(name: str) -> dict[Any, Any]:
    found = getattr(distributed_c10d, name, None)
    return found if isinstance(found, dict) else {}
