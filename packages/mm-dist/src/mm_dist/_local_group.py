"""The group of the ranks that share a machine."""

import socket
from pathlib import Path
from typing import Any

import torch.distributed as dist

from mm_dist._collectives._objects import all_gather_object
from mm_dist._process_group._current import current_environment, current_info
from mm_dist._state import is_distributed, state

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def init_local_group(node_rank: int | None = None, num_gpus_per_node: int | None = None) -> None:
    """Create the group of the ranks on this machine; all ranks of all machines have to call it.

    Ranks find out who shares a machine by themselves: from the launcher's number of the machine,
    else from its name. Machines may have different numbers of ranks, in any order.

    Args:
        node_rank: Number of this machine, to group by it; given on all ranks, or on none.
        num_gpus_per_node: Unused: the ranks are counted.
    """
    del num_gpus_per_node
    if not is_distributed():
        return
    environment = current_environment()
    # The machine's name alone is not enough: machines made from one image may share it.
    name = socket.gethostname() + (_BOOT_ID.read_text() if _BOOT_ID.exists() else "")
    launcher_node = None if environment is None else environment.node_rank
    places = all_gather_object((node_rank, launcher_node, name))
    # The best information that all ranks have.
    machines = next(column for column in zip(*places, strict=True) if None not in column)
    own: Any = dist.group.WORLD
    if len(set(machines)) > 1:
        # Without a timeout torch would take its own default, and not that of the default group.
        timeout = current_info().timeout
        arguments: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
        # All ranks create all groups, in the same order, as torch wants it.
        for machine in dict.fromkeys(machines):
            ranks = [rank for rank, each in enumerate(machines) if each == machine]
            group = dist.new_group(ranks, **arguments)
            own = group if dist.get_rank() in ranks else own
    state.local_group = (dist.group.WORLD, own)


def get_local_group() -> Any:
    """Return the group of the ranks on this machine; the first call is made by all ranks.

    That call creates the group as ``init_local_group`` does. ``get_local_rank`` and
    ``get_local_size`` do not need it.

    Returns:
        The group, as every ``group=`` argument takes it; ``None`` in a single process.
    """
    if not is_distributed():
        return None
    if state.local_group is None or state.local_group[0] is not dist.group.WORLD:
        init_local_group()
    return state.local_group[1] if state.local_group is not None else None


def get_default_group() -> Any:
    """Return the group of all ranks, ``None`` in a single process."""
    return dist.group.WORLD if is_distributed() else None
