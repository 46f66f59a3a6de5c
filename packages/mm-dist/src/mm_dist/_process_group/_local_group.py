"""The group of the ranks that share a machine."""

import hashlib
import socket
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple, SupportsIndex

import torch
import torch.distributed as dist

from mm_dist._backends import communication_device
from mm_dist._errors import ArgumentTypeError, ConfigError, LaunchError
from mm_dist._process_group._current import current_info, current_node_rank
from mm_dist._process_group._state import is_distributed, state

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_UNKNOWN = -1


class _Place(NamedTuple):
    """What one rank says about its machine; -1 for what it does not know."""

    asked_node: int
    asked_size: int
    launcher_node: int
    machine: int
    local_rank: int


def init_local_group(node_rank: int | None = None, num_gpus_per_node: int | None = None) -> None:
    """Create the group of the ranks on this machine; all ranks of all machines have to call it.

    Ranks find out who shares a machine by themselves: from the launcher's number of the machine,
    else from its name. Machines may have different numbers of ranks, in any order.

    Args:
        node_rank: Number of this machine, where that shall decide; then all ranks give it.
        num_gpus_per_node: Number of ranks on this machine, to be checked against what is found.

    Raises:
        ArgumentTypeError: If something that was given is no whole number.
        ConfigError: If the numbers given do not fit the ranks that are there.
        LaunchError: If two ranks of one machine have the same local rank.

    Example:
        >>> init_local_group(node_rank=0, num_gpus_per_node=1)
    """
    _check_number("node_rank", node_rank, least=0)
    _check_number("num_gpus_per_node", num_gpus_per_node, least=1)
    if not is_distributed():
        return
    places = _exchange(_find_place(node_rank, num_gpus_per_node))
    nodes = _group_by_node(places)
    _check_nodes(nodes, places)
    state.local_group = (dist.group.WORLD, _create_groups(list(nodes.values())))


def get_local_group() -> Any:
    """Return the group of the ranks on this machine; the first call is made by all ranks.

    That call creates the group as ``init_local_group`` does. ``get_local_rank`` and
    ``get_local_size`` do not need it.

    Returns:
        The group, as every ``group=`` argument takes it; ``None`` in a single process.

    Example:
        >>> get_local_group() is None
        True
    """
    if not is_distributed():
        return None
    if state.local_group is None or state.local_group[0] is not dist.group.WORLD:
        init_local_group()
    return state.local_group[1] if state.local_group is not None else None


def get_default_group() -> Any:
    """Return the group of all ranks, ``None`` in a single process.

    Example:
        >>> get_default_group() is None
        True
    """
    return dist.group.WORLD if is_distributed() else None


def _check_number(name: str, value: object, *, least: int) -> None:
    if value is None:
        return
    if not isinstance(value, SupportsIndex):
        raise ArgumentTypeError(
            f"init_local_group got {name}={value!r}; pass a whole number, or leave it out."
        )
    if value.__index__() < least:
        raise ConfigError(
            f"init_local_group got {name}={value!r}; pass at least {least}, or leave it out."
        )


def _find_place(node_rank: int | None, num_local_ranks: int | None) -> _Place:
    launcher_node = current_node_rank()
    return _Place(
        _UNKNOWN if node_rank is None else node_rank,
        _UNKNOWN if num_local_ranks is None else num_local_ranks,
        _UNKNOWN if launcher_node is None else launcher_node,
        _identify_machine(),
        current_info().local_rank,
    )


def _identify_machine() -> int:
    # The name alone is not enough: machines made from one image may share it.
    boot_id = _BOOT_ID.read_text() if _BOOT_ID.exists() else ""
    digest = hashlib.sha256(f"{socket.gethostname()}\0{boot_id}".encode()).digest()
    return int.from_bytes(digest[:7], "big")


def _exchange(own: _Place) -> list[_Place]:
    data = torch.tensor(own, dtype=torch.int64, device=communication_device())
    gathered = [torch.empty_like(data) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, data)
    return [_Place(*each.tolist()) for each in gathered]


def _group_by_node(places: list[_Place]) -> dict[int, list[int]]:
    """Map each machine to its ranks, by the best information that all ranks have."""
    asked = [place.asked_node != _UNKNOWN for place in places]
    if any(asked) and not all(asked):
        silent = asked.index(False)
        raise ConfigError(
            f"init_local_group was given node_rank on some ranks, but not on rank {silent}; give "
            "it on all ranks, or on none."
        )
    is_known = all(place.launcher_node != _UNKNOWN for place in places)
    field = "asked_node" if all(asked) else "launcher_node" if is_known else "machine"
    nodes: dict[int, list[int]] = defaultdict(list)
    for rank, place in enumerate(places):
        nodes[getattr(place, field)].append(rank)
    return nodes


def _check_nodes(nodes: dict[int, list[int]], places: list[_Place]) -> None:
    """Check what was said against what was found; the same on all ranks, so none waits."""
    for ranks in nodes.values():
        for rank in ranks:
            if places[rank].asked_size not in (_UNKNOWN, len(ranks)):
                raise ConfigError(
                    f"init_local_group got num_gpus_per_node={places[rank].asked_size} on rank "
                    f"{rank}, but its machine has {len(ranks)} ranks: {ranks}. Leave the argument "
                    "out, or correct node_rank."
                )
        number, count = Counter(places[rank].local_rank for rank in ranks).most_common(1)[0]
        if count > 1:
            raise LaunchError(
                f"Ranks {ranks} seem to share a machine, but {count} of them have local rank "
                f"{number}: their machines cannot be told apart by name. Call "
                "init_local_group(node_rank, num_gpus_per_node) on all ranks."
            )


def _create_groups(nodes: list[list[int]]) -> Any:
    if len(nodes) == 1:
        return dist.group.WORLD
    rank, timeout = dist.get_rank(), current_info().timeout
    # All ranks create all groups, in the same order, as torch wants it. Without a timeout torch
    # would take its own default, and not that of the default group.
    arguments: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
    groups = [dist.new_group(ranks, **arguments) for ranks in nodes]
    return next(group for group, ranks in zip(groups, nodes, strict=True) if rank in ranks)
