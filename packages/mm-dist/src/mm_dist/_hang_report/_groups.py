"""How many collectives each process group of this process has begun."""

from typing import Any, NamedTuple

import torch.distributed as dist

from mm_dist._process_group._group_timeouts import read_group_timeout
from mm_dist._torch_private import backend_of, count_collectives, group_name, list_groups

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
    for group, backends in list_groups():
        name = group_name(group)
        for part, counted in _counted_parts(group, backends):
            value = count_collectives(counted)
            if value is None:
                continue
            key = f"{name}/{part}" if ":" in part else name
            counts[key] = Count(value, part.rpartition(":")[2])
    return counts


def _counted_parts(group: Any, backends: str) -> list[tuple[str, Any]]:
    if ":" not in backends:
        return [(backends, group)]
    parts = backends.split(",")
    return [(part, backend_of(group, part.partition(":")[0])) for part in parts]


def read_timeouts() -> dict[str, float]:
    """Map the name of each group of this process to its timeout in seconds, if torch tells it."""
    timeouts = {}
    for group, _ in list_groups():
        timeout = read_group_timeout(group)
        if timeout is not None:
            timeouts[group_name(group)] = timeout.total_seconds()
    return timeouts


def find_start(value: int) -> int:
    """Return the count that a group began with, given its count when it was new."""
    return value if value > _RANDOM_START else 0


def group_of(key: str) -> str:
    """Return the name of the group that a key of ``read_counts`` belongs to."""
    return key.partition("/")[0]


def default_group_name() -> str:
    """Return the name under which ``read_counts`` knows the group of all ranks."""
    return group_name(dist.group.WORLD)
