"""Autocast: which dtype on which device, and a context manager that says no instead of nothing."""

import logging
import warnings
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch

from ._autocast_dtype import has_native_bfloat16, resolve_dtype
from ._compiling import is_compiling
from ._errors import ConfigError, TorchVersionError
from ._weight_cache import drops_gradients, new_autocast

_logger = logging.getLogger(__name__)
# Asked in this order where torch has no accelerator module, which came with torch 2.6.
_DEVICE_MODULES = ("npu", "mlu", "musa", "xpu", "hpu")


def autocast(
    device_type: str | None = None,
    dtype: str | torch.dtype | None = None,
    enabled: bool = True,  # noqa: FBT001, FBT002 - MMEngine's signature
    cache_enabled: bool | None = None,  # noqa: FBT001 - the same
) -> AbstractContextManager[object]:
    """Run a block in mixed precision: ``torch.autocast`` that never turns itself off silently.

    Args:
        device_type: Such as ``'cuda'`` or ``'cpu'``. Defaults to the accelerator of this machine
            if there is one, else the CPU.
        dtype: ``'float16'``, ``'bfloat16'``, either as a ``torch.dtype``, or ``'auto'``. Defaults
            to torch's own choice for the device.
        enabled: ``False`` runs the block in full precision, also inside another autocast.
        cache_enabled: Whether casts of the weights are kept until the block ends. Defaults to
            torch's current setting, which is yes. A part of the block that runs under
            ``torch.no_grad()`` does not take gradients away from a later one: where torch would
            reuse its casts, they are dropped when it ends.

    Returns:
        A context manager, which also decorates functions.

    Raises:
        ConfigError: If the device cannot autocast to ``dtype``.
        TorchVersionError: If a newer torch could.

    Example:
        >>> with autocast("cpu", "bfloat16"):
        ...     (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
        torch.bfloat16
    """
    device_type = parse_device(device_type or default_device_type()).type
    if not enabled:
        return no_autocast(device_type)
    resolved = resolve_dtype(dtype, torch.device(device_type))
    if not is_compiling():  # the compiler cannot follow, and finds out for itself
        check_autocast(device_type, resolved)
    return new_autocast(device_type, dtype=resolved, cache_enabled=cache_enabled)


def parse_device(device: str) -> torch.device:
    """Turn ``'cuda'`` or ``'cuda:1'`` into a device.

    Raises:
        ConfigError: If torch knows no such device.
    """
    try:
        return torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(
            f"device_type is {device!r}, and torch {torch.__version__} answers: {error}"
        ) from error


def default_device_type() -> str:
    """Return the type of this machine's accelerator, or ``'cpu'``."""
    if torch.cuda.is_available():
        return "cuda"
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is None:
        return _accelerator_of_old_torch()
    # Where none is available, torch 2.6 raises when asked which.
    device_type: str = (
        accelerator.current_accelerator().type if accelerator.is_available() else "cpu"
    )
    return device_type


def _accelerator_of_old_torch() -> str:
    for name in _DEVICE_MODULES:
        device_module: Any = getattr(torch, name, None)
        if hasattr(device_module, "is_available") and device_module.is_available():
            return name
    return "mps" if torch.backends.mps.is_available() else "cpu"


@cache  # the probe is not free, and the answer stays the same
def check_autocast(device_type: str, dtype: torch.dtype) -> None:
    """Raise unless torch really autocasts to ``dtype`` on such a device.

    torch is asked by entering an empty block, since what it can do differs between versions and
    builds; where it would warn and go on in full precision, this raises. Where it would only
    emulate bfloat16, this logs a warning, once.

    Raises:
        ConfigError: If it cannot.
        TorchVersionError: If a newer torch could.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            with torch.autocast(device_type, dtype=dtype):
                pass
    except (RuntimeError, AssertionError, AttributeError, UserWarning) as error:
        if device_type == "cpu" and dtype == torch.float16:
            raise TorchVersionError(
                f"float16 autocast was asked for on cpu, which torch {torch.__version__} lacks; "
                "use dtype='bfloat16', or torch 2.4 or newer."
            ) from error
        raise ConfigError(
            f"autocast to {dtype} was asked for on {device_type!r}, and torch "
            f"{torch.__version__} answers: {error} Choose another dtype or device_type."
        ) from error
    drops_gradients()  # asked now, since finding out runs operations, and not in a step
    if dtype == torch.bfloat16 and device_type == "cuda":
        _warn_about_emulation(device_type)


def _warn_about_emulation(device_type: str) -> None:
    if not has_native_bfloat16(torch.device(device_type)):
        _logger.warning(
            "bfloat16 was asked for on %s, which emulates it and is likely to be slow; "
            "use dtype='float16', or dtype='auto' to have that chosen.",
            device_type,
        )


def no_autocast(device_type: str) -> AbstractContextManager[object]:
    """Return a context without autocast on such a device, whatever is around it."""
    try:
        return torch.autocast(device_type, enabled=False)
    except (RuntimeError, AttributeError):  # torch cannot autocast it: there is none to turn off
        return nullcontext()
