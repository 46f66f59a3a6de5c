"""The group of the ranks that share a machine."""

import socket
from collections import defaultdict
from pathlib import Path
from typing import Any, SupportsIndex

import torch.distributed as dist

from mm_dist._collectives._objects import all_gather_object
from mm_dist._errors import ArgumentTypeError, ConfigError
from mm_dist._process_group._current import current_environment, current_info
from mm_dist._state import is_distributed, state

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


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

    Example:
        >>> init_local_group(node_rank=0, num_gpus_per_node=1)
    """
    for name, value in (("node_rank", node_rank), ("num_gpus_per_node", num_gpus_per_node)):
        if value is not None and not isinstance(value, SupportsIndex):
            raise ArgumentTypeError(
                f"init_local_group got {name}={value!r}; pass a whole number, or leave it out."
            )
    if not is_distributed():
        return
    environment = current_environment()
    # The machine's name alone is not enough: machines made from one image may share it.
    machine = socket.gethostname() + (_BOOT_ID.read_text() if _BOOT_ID.exists() else "")
    launcher_node = None if environment is None else environment.node_rank
    places = all_gather_object((node_rank, launcher_node, machine, num_gpus_per_node))
    given = [place[0] is not None for place in places]
    if any(given) and not all(given):
        raise ConfigError(
            "init_local_group was given node_rank on some ranks, but not on rank "
            f"{given.index(False)}; give it on all ranks, or on none."
        )
    # The best information that all ranks have.
    column = next(i for i in range(3) if all(place[i] is not None for place in places))
    nodes: dict[Any, list[int]] = defaultdict(list)
    for rank, place in enumerate(places):
        nodes[place[column]].append(rank)
    for ranks in nodes.values():
        sizes = {places[rank][3] for rank in ranks} - {None, len(ranks)}
        if sizes:
            raise ConfigError(
                f"init_local_group got num_gpus_per_node={sizes.pop()}, but the machine has "
                f"{len(ranks)} ranks: {ranks}. Leave the argument out, or correct node_rank."
            )
    own: Any = dist.group.WORLD
    if len(nodes) > 1:
        # All ranks create all groups, in the same order, as torch wants it. Without a timeout torch
        # would take its own default, and not that of the default group.
        timeout = current_info().timeout
        arguments: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
        groups = [dist.new_group(ranks, **arguments) for ranks in nodes.values()]
        own = groups[list(nodes).index(places[dist.get_rank()][column])]
    state.local_group = (dist.group.WORLD, own)


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
