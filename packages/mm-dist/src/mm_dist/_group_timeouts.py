"""Read and change how long the collectives of a group may take; torch has no one way for it."""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from mm_dist._backends import backend_names, backends_by_device_type
from mm_dist._errors import TorchVersionError
from mm_dist._torch_private import (
    backend_of,
    can_nccl_timeout_change,
    read_default_timeout,
    read_timeout,
    set_timeout,
)


def default_timeout(backend: str) -> timedelta:
    """Return the timeout that torch gives to groups of a backend; of pairs, the shortest.

    Example:
        >>> default_timeout("gloo")
        datetime.timedelta(seconds=1800)
    """
    return min(read_default_timeout(name) for name in backend_names(backend))


def read_group_timeout(group: Any) -> timedelta | None:
    """Return how long a collective of this group may take, as torch has it.

    Of a group with one backend per device, the shortest; ``None`` where no backend has the option.
    """
    timeouts = [read_timeout(_options_of(backend)) for backend in _backends_of(group)]
    return min((timeout for timeout in timeouts if timeout is not None), default=None)


def _options_of(backend: Any) -> Any:
    try:
        return getattr(backend, "options", None)
    except RuntimeError:
        # torch 2.15 gives each backend the attribute, and those of other vendors need not fill it.
        return None


def change_group_timeout(group: Any, timeout: timedelta) -> None:
    """Give a group another timeout; collectives that have begun keep theirs."""
    for backend in _backends_of(group):
        set_timeout(backend, timeout)


def check_timeout_can_change(backend: str) -> None:
    """Check that torch lets the timeout of a running group change, with effect.

    Raises:
        TorchVersionError: If it does not for one of the backends.
    """
    for name in backend_names(backend):
        if _can_change(name):
            continue
        needed = "2.4" if name == "nccl" else "2.9"
        raise TorchVersionError(
            f"steady_timeout changes the timeout of a running {name!r} group, which needs torch "
            f"{needed} or newer; this is torch {torch.__version__}. Leave steady_timeout out, or "
            "upgrade torch."
        )


def _can_change(backend: str) -> bool:
    if backend == "nccl":
        return can_nccl_timeout_change()
    # Not the method that gloo has for longer: there it takes the new value, gives it back when
    # asked, and goes on with the old one. Other vendors' backends inherit the newer method.
    return hasattr(getattr(dist, "ProcessGroupGloo", None), "set_timeout")


def _backends_of(group: Any) -> list[Any]:
    found = [backend_of(group, name) for name in backends_by_device_type(group)]
    # TORCH_DISTRIBUTED_DEBUG=DETAIL puts a checker around the backend.
    return [getattr(each, "wrapped_pg", each) for each in found]
