"""From the long timeout of the first step to the shorter one of all others."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from mm_dist._backends import backends_by_device_type, barrier_device_type
from mm_dist._devices import synchronize_device
from mm_dist._group_timeouts import (
    change_group_timeout,
    default_timeout,
    read_group_timeout,
)
from mm_dist._state import find_own_group
from mm_dist._torch_private import list_groups

_logger = logging.getLogger(__name__)


@dataclass
class SteadySwitch:
    """Whether the shorter timeout still has to be set.

    Attributes:
        timeout: The shorter one; ``None`` where none was asked for, or it is set already.
        is_due: The one thing that is looked at in each step.
    """

    timeout: timedelta | None = None
    is_due: bool = False

    def arm(self, timeout: timedelta | None) -> None:
        """Set the timeout that ``enter_steady_state`` applies; ``None`` for none."""
        self.timeout, self.is_due = timeout, timeout is not None


steady_switch = SteadySwitch()


def enter_steady_state() -> None:
    """Set the ``steady_timeout`` of ``init_dist``; all ranks have to call it, at the same point.

    Call it once the slow part of the start is over: data loaded, kernels compiled, first step
    done. The ``train_step`` of our wrappers does so after the first step. It waits for all ranks,
    then shortens the timeouts of all groups; those that were created with another timeout keep
    it. Without ``steady_timeout``, and from the second call on, nothing happens.

    Example:
        >>> enter_steady_state()
    """
    timeout = steady_switch.timeout
    steady_switch.arm(None)
    own = find_own_group()
    if timeout is None or own is None:
        return
    # First all ranks arrive: the fast ones must not time out waiting for those that still compile.
    is_device_needed = barrier_device_type(backends_by_device_type()) is not None
    dist.barrier(device_ids=[own.info.device.index] if is_device_needed else None)
    synchronize_device(own.info.device)
    former = own.info.timeout
    for group in _groups_to_change(former):
        change_group_timeout(group, timeout)
    own.info = replace(own.info, timeout=read_group_timeout(own.group))
    if own.hang_report is not None:
        own.hang_report.set_timeout(timeout)
    _logger.debug("timeout %s from now on, it was %s", own.info.timeout, former)


def _groups_to_change(former: timedelta | None) -> Iterator[Any]:
    for group, backend in list_groups():
        # torch gives subgroups its own default, and not the default group's timeout.
        usual = (former, default_timeout(backend))
        if group is dist.group.WORLD or read_group_timeout(group) in usual:
            yield group
