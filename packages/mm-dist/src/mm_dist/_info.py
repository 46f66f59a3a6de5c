"""Ask where this process stands; every function is right in a single process too."""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch.distributed as dist

from mm_dist._backends import backends_by_device_type, barrier_device_type
from mm_dist._devices import current_device
from mm_dist._errors import LaunchError
from mm_dist._process_group._current import current_info
from mm_dist._state import is_distributed, state

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def get_rank(group: Any = None) -> int:
    """Return this process's number within ``group``, 0 without a process group."""
    if is_distributed():
        return int(dist.get_rank(group))
    return 0 if state.failed is None else state.failed.rank


def get_world_size(group: Any = None) -> int:
    """Return the number of processes in ``group``, 1 without a process group."""
    if is_distributed():
        return int(dist.get_world_size(group))
    return 1 if state.failed is None else state.failed.world_size


def get_local_rank() -> int:
    """Return this process's number on its machine, 0 without a process group.

    Processes of a group that no launcher started are taken to be on one machine.
    """
    if is_distributed():
        return current_info().local_rank
    return 0 if state.failed is None else state.failed.local_rank


def get_local_size() -> int:
    """Return the number of processes on this machine, 1 without a process group.

    Raises:
        LaunchError: If the launcher did not say.
    """
    if not is_distributed():
        return 1 if state.failed is None else state.failed.local_world_size or 1
    info = current_info()
    if info.local_world_size is None:
        raise LaunchError(
            f"Launcher {info.launcher!r} does not report how many processes this machine has; "
            "set LOCAL_WORLD_SIZE on each process."
        )
    return info.local_world_size


def get_dist_info(group: Any = None) -> tuple[int, int]:
    """Return ``(rank, world_size)`` within ``group``."""
    return get_rank(group), get_world_size(group)


def get_backend(group: Any = None) -> str | None:
    """Return the name of the group's backend, ``None`` without a process group."""
    return str(dist.get_backend(group)) if is_distributed() else None


def is_main_process(group: Any = None) -> bool:
    """Return whether this process is rank 0 of ``group``."""
    return get_rank(group) == 0


def master_only(func: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result | None]:
    """Make a function run on rank 0 only; elsewhere it returns ``None``.

    Example:
        >>> master_only(print)("once")
        once
    """

    @wraps(func)
    def run_on_master(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result | None:
        return func(*args, **kwargs) if is_main_process() else None

    return run_on_master


def barrier(group: Any = None) -> None:
    """Wait until every process of ``group`` has come here.

    Returns at once in a single process, and in one that does not belong to the group.
    """
    if not is_distributed() or get_rank(group) < 0:
        return
    device_type = barrier_device_type(backends_by_device_type(group))
    if device_type is None:
        dist.barrier(group)
    else:
        dist.barrier(group, device_ids=[current_device(device_type).index])
