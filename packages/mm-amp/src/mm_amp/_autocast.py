"""Autocast: which dtype on which device, and a context manager that says no instead of nothing."""

import warnings
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch

from ._checks import did_you_mean
from ._errors import ConfigError, ConfigTypeError, TorchVersionError

_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
_FULL_DTYPES = {"float32": torch.float32, "float64": torch.float64}


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
        cache_enabled: Whether casts of the weights are kept within the block. Defaults to torch's
            current setting. Turn it off if a block runs parts of the model under
            ``torch.no_grad()`` first and with gradients after.

    Returns:
        A context manager.

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
        return _no_autocast(device_type)
    resolved = resolve_dtype(dtype, torch.device(device_type))
    check_autocast(device_type, resolved)
    return torch.autocast(device_type, dtype=resolved, cache_enabled=cache_enabled)


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


def resolve_dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype:
    """Turn what a user wrote into ``torch.float16`` or ``torch.bfloat16``.

    Raises:
        ConfigError: If ``dtype`` names neither of them.
    """
    if dtype is None:
        return default_dtype(device.type)
    if dtype == "auto":
        return torch.bfloat16 if _has_native_bfloat16(device) else torch.float16
    if isinstance(dtype, str):
        return _dtype_named(dtype)
    if not isinstance(dtype, torch.dtype):
        raise ConfigTypeError(
            f"dtype is {dtype!r}; it must be 'float16', 'bfloat16', 'auto', a torch.dtype or None."
        )
    if dtype not in _DTYPES.values():
        raise _not_mixed(str(dtype))
    return dtype


def default_dtype(device_type: str) -> torch.dtype:
    """Return the dtype that torch itself autocasts to on such a device."""
    # torch.get_autocast_dtype needs torch 2.4; this attribute is there in all versions.
    dtype: torch.dtype = _new_autocast(device_type, enabled=False).fast_dtype
    return dtype


def default_device_type() -> str:
    """Return the type of this machine's accelerator, or ``'cpu'``."""
    if torch.cuda.is_available():
        return "cuda"
    accelerator = getattr(torch, "accelerator", None)  # torch 2.6
    if accelerator is None or not accelerator.is_available():
        return "cpu"
    device_type: str = accelerator.current_accelerator().type
    return device_type


@cache  # the probe is not free, and the answer stays the same
def check_autocast(device_type: str, dtype: torch.dtype) -> None:
    """Raise unless torch really autocasts to ``dtype`` on such a device.

    torch is asked by entering an empty block, since what it can do differs between versions and
    builds; where it would warn and go on in full precision, this raises.

    Raises:
        ConfigError: If it cannot.
        TorchVersionError: If a newer torch could.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            with _new_autocast(device_type, dtype=dtype):
                pass
    except (RuntimeError, UserWarning) as error:
        if device_type == "cpu" and dtype == torch.float16:
            raise TorchVersionError(
                f"float16 autocast was asked for on cpu, which torch {torch.__version__} lacks; "
                "use dtype='bfloat16', or torch 2.4 or newer."
            ) from error
        raise ConfigError(
            f"autocast to {dtype} was asked for on {device_type!r}, and torch "
            f"{torch.__version__} answers: {error} Choose another dtype or device_type."
        ) from error


def _no_autocast(device_type: str) -> AbstractContextManager[object]:
    try:
        return torch.autocast(device_type, enabled=False)
    except RuntimeError:  # a device that torch cannot autocast has no autocast to turn off
        return nullcontext()


def _new_autocast(device_type: str, **options: Any) -> torch.autocast:
    try:
        return torch.autocast(device_type, **options)
    except (RuntimeError, AssertionError) as error:
        if "dtype" in options:
            raise
        raise ConfigError(
            f"autocast was asked for on {device_type!r}, and torch {torch.__version__} answers: "
            f"{error} Pass a device_type that torch can autocast, such as 'cuda' or 'cpu'."
        ) from error


def _dtype_named(name: str) -> torch.dtype:
    if name in _FULL_DTYPES:
        raise _not_mixed(name)
    if name not in _DTYPES:
        known = [*_DTYPES, "auto"]
        hint = did_you_mean(name, known) or "."
        raise ConfigError(f"dtype is {name!r}; there is {', '.join(known)}{hint}")
    return _DTYPES[name]


def _not_mixed(name: str) -> ConfigError:
    return ConfigError(
        f"dtype is {name}, but mixed precision computes in float16 or bfloat16; "
        "for full precision use OptimWrapper, or autocast(enabled=False)."
    )


def _has_native_bfloat16(device: torch.device) -> bool:
    """Whether the device computes in bfloat16 itself; torch also counts CUDA's slow emulation."""
    if device.type == "cuda" and torch.version.hip is None:
        ampere = (8, 0)  # the first generation with bfloat16 units
        return torch.cuda.get_device_capability(device) >= ampere
    device_module: Any = getattr(torch, device.type, None)
    if hasattr(device_module, "is_bf16_supported"):
        return bool(device_module.is_bf16_supported())
    return default_dtype(device.type) == torch.bfloat16
