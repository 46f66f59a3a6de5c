"""The group of the ranks that share a machine."""

import hashlib
import socket
from collections import defaultdict
from pathlib import Path
from typing import Any, SupportsIndex

import torch
import torch.distributed as dist

from mm_dist._backends import communication_device
from mm_dist._errors import ArgumentTypeError, ConfigError, LaunchError
from mm_dist._process_group._current import current_info, current_node_rank
from mm_dist._state import is_distributed, state

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_UNKNOWN = -1


def init_local_group(node_rank: int | None = None, num_gpus_per_node: int | None = None) -> None:
    """Create the group of the ranks on this machine; all ranks of all machines have to call it.

    Ranks find out who shares a machine by themselves: from the launcher's number of the machine,
    else from its name. Machines may have different numbers of ranks, in any order.

    Args:
        node_rank: Number of this machine, to group by it; given on all ranks, or on none.
        num_gpus_per_node: Number of ranks on this machine, to be checked against what is found.

    Raises:
        ArgumentTypeError: If something that was given is no whole number.
        ConfigError: If the numbers given do not fit the ranks that are there.
        LaunchError: If two ranks of one machine have the same local rank.

    Example:
        >>> init_local_group(node_rank=0, num_gpus_per_node=1)
    """
    for name, value in (("node_rank", node_rank), ("num_gpus_per_node", num_gpus_per_node)):
        if value is not None and not isinstance(value, SupportsIndex):
            raise ArgumentTypeError(
                f"init_local_group got {name}={value!r}; pass a whole number, or leave it out."
            )
        least = int(name == "num_gpus_per_node")
        if value is not None and value < least:
            raise ConfigError(
                f"init_local_group got {name}={value!r}; pass at least {least}, or leave it out."
            )
    if not is_distributed():
        return
    launcher_node = current_node_rank()
    own = [
        _UNKNOWN if node_rank is None else node_rank,
        _UNKNOWN if launcher_node is None else launcher_node,
        _identify_machine(),
        _UNKNOWN if num_gpus_per_node is None else num_gpus_per_node,
        current_info().local_rank,
    ]
    data = torch.tensor(own, dtype=torch.int64, device=communication_device())
    gathered = [torch.empty_like(data) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, data)
    nodes = _group_by_node([each.tolist() for each in gathered])
    state.local_group = (dist.group.WORLD, _create_groups(nodes))


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


def _identify_machine() -> int:
    # The name alone is not enough: machines made from one image may share it.
    boot_id = _BOOT_ID.read_text() if _BOOT_ID.exists() else ""
    digest = hashlib.sha256(f"{socket.gethostname()}\0{boot_id}".encode()).digest()
    return int.from_bytes(digest[:7], "big")


def _group_by_node(places: list[list[int]]) -> list[list[int]]:
    """Return the ranks of each machine, by the best information that all ranks have.

    All ranks check the same places alike, so that none waits for one that has raised.
    """
    asked = [place[0] != _UNKNOWN for place in places]
    if any(asked) and not all(asked):
        raise ConfigError(
            "init_local_group was given node_rank on some ranks, but not on rank "
            f"{asked.index(False)}; give it on all ranks, or on none."
        )
    column = next(i for i in range(3) if all(place[i] != _UNKNOWN for place in places))
    nodes: dict[int, list[int]] = defaultdict(list)
    for rank, place in enumerate(places):
        nodes[place[column]].append(rank)
    for ranks in nodes.values():
        sizes = {places[rank][3] for rank in ranks} - {_UNKNOWN, len(ranks)}
        if sizes:
            raise ConfigError(
                f"init_local_group got num_gpus_per_node={sizes.pop()}, but the machine has "
                f"{len(ranks)} ranks: {ranks}. Leave the argument out, or correct node_rank."
            )
        if len({places[rank][4] for rank in ranks}) < len(ranks):
            raise LaunchError(
                f"Ranks {ranks} seem to share a machine, but some of them have the same local "
                "rank: their machines cannot be told apart by name. Call "
                "init_local_group(node_rank, num_gpus_per_node) on all ranks."
            )
    return list(nodes.values())


def _create_groups(nodes: list[list[int]]) -> Any:
    if len(nodes) == 1:
        return dist.group.WORLD
    rank, timeout = dist.get_rank(), current_info().timeout
    # All ranks create all groups, in the same order, as torch wants it. Without a timeout torch
    # would take its own default, and not that of the default group.
    arguments: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
    groups = [dist.new_group(ranks, **arguments) for ranks in nodes]
    return next(group for group, ranks in zip(groups, nodes, strict=True) if rank in ranks)
