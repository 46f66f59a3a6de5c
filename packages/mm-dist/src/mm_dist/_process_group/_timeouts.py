"""Read and change how long collectives may take; torch has no one way for it."""

import logging
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from mm_dist._backends import backend_names, backends_by_device_type, barrier_device_type
from mm_dist._devices import synchronize_device
from mm_dist._errors import TorchVersionError
from mm_dist._state import find_own_group
from mm_dist._torch_private import (
    backend_of,
    can_nccl_timeout_change,
    list_groups,
    read_default_timeout,
    read_timeout_option,
    set_timeout,
)

_logger = logging.getLogger(__name__)


def default_timeout(backend: str) -> timedelta:
    """Return the timeout that torch gives to groups of a backend; of pairs, the shortest."""
    return min(read_default_timeout(name) for name in backend_names(backend))


def read_group_timeout(group: Any) -> timedelta | None:
    """Return how long a collective of this group may take, as torch has it."""
    timeouts = [read_timeout_option(backend) for backend in _backends_of(group)]
    return min((timeout for timeout in timeouts if timeout is not None), default=None)


def check_timeout_can_change(backend: str) -> None:
    """Check that torch lets the timeout of a running group change, with effect."""
    for name in backend_names(backend):
        # gloo's older method accepts a new timeout and ignores it. Other vendors' backends inherit
        # the newer one.
        gloo = getattr(dist, "ProcessGroupGloo", None)
        if can_nccl_timeout_change() if name == "nccl" else hasattr(gloo, "set_timeout"):
            continue
        needed = "2.4" if name == "nccl" else "2.9"
        raise TorchVersionError(
            f"steady_timeout changes the timeout of a running {name!r} group, which needs torch "
            f"{needed} or newer; this is torch {torch.__version__}. Leave steady_timeout out, or "
            "upgrade torch."
        )


def enter_steady_state() -> None:
    """Set the ``steady_timeout`` of ``init_dist``; all ranks have to call it, at the same point.

    Call it once the slow part of the start is over: data loaded, kernels compiled, first step
    done. The ``train_step`` of our wrappers does so after the first step. It waits for all ranks,
    then shortens the timeouts of all groups; those that were created with another timeout keep
    it. Without ``steady_timeout``, and from the second call on, nothing happens.
    """
    own = find_own_group()
    if own is None or own.steady_timeout is None:
        return
    timeout, own.steady_timeout = own.steady_timeout, None
    # First all ranks arrive: the fast ones must not time out waiting for those that still compile.
    is_device_needed = barrier_device_type(backends_by_device_type()) is not None
    dist.barrier(device_ids=[own.info.device.index] if is_device_needed else None)
    synchronize_device(own.info.device)
    former = own.info.timeout
    for group, backend in list_groups():
        # torch gives subgroups its own default, and not the default group's timeout.
        usual = (former, default_timeout(backend))
        if group is dist.group.WORLD or read_group_timeout(group) in usual:
            for each in _backends_of(group):
                set_timeout(each, timeout)
    own.info = replace(own.info, timeout=read_group_timeout(own.group))
    if own.hang_report is not None:
        own.hang_report.set_timeout(timeout)
    _logger.debug("timeout %s from now on, it was %s", own.info.timeout, former)


def _backends_of(group: Any) -> list[Any]:
    found = [backend_of(group, name) for name in backends_by_device_type(group)]
    # TORCH_DISTRIBUTED_DEBUG=DETAIL puts a checker around the backend.
    return [getattr(each, "wrapped_pg", each) for each in found]
