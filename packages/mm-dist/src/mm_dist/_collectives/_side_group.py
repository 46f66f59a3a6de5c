"""The group through which objects travel: one that serves the CPU, if that can be had."""

import weakref
from typing import Any

import torch.distributed as dist

from mm_dist._backends import communication_device
from mm_dist._collectives._state import group_state
from mm_dist._process_group._group_timeouts import read_group_timeout


def objects_group(group: Any = None) -> Any:
    """Return the group for the objects of ``group``.

    That is the group itself, unless it is the default one and serves an accelerator only: then a
    gloo group is made beside it on first use, so that pickles need no memory of the accelerator.
    It has the same timeout, and is destroyed together with the default group. All ranks must come
    here together.

    The objects of other groups pass through their accelerator, a piece at a time: torch makes a
    group for some of the ranks only where all ranks take part, and these are not asked.
    """
    default = dist.group.WORLD
    if group is not None and group is not default:
        return group
    if communication_device(group=default).type == "cpu" or not dist.is_gloo_available():
        return default
    state = group_state(default)
    side = state.find_side_group()
    if side is None:
        timeout = read_group_timeout(default)
        limits: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
        side = dist.new_group(backend="gloo", **limits)
        # torch keeps it until the default group is destroyed; we must not keep it any longer.
        state.find_side_group = weakref.ref(side)
    return side
