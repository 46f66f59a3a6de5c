"""Autocast: which dtype on which device, and a context that raises where torch would turn off."""

import warnings
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch

from mm_amp._checks import did_you_mean
from mm_amp._errors import ConfigError, ConfigTypeError, TorchVersionError
from mm_amp._torch_private import is_compiling

_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
_OTHER_NAMES = {
    **dict.fromkeys(("fp16", "half", "16", "16-mixed"), "float16"),
    **dict.fromkeys(("bf16", "bf16-mixed"), "bfloat16"),
    **dict.fromkeys(("fp32", "float", "full", "32", "no", "float64"), "float32"),
}
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
            torch's current setting, which is yes.

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
    if not is_compiling():  # the compiler cannot trace it
        check_autocast(device_type, resolved)
    return torch.autocast(device_type, dtype=resolved, cache_enabled=cache_enabled)


def no_autocast(device_type: str) -> AbstractContextManager[object]:
    """Return a context without autocast on such a device, whatever is around it."""
    try:
        return torch.autocast(device_type, enabled=False)
    except (RuntimeError, AttributeError):  # torch cannot autocast it: there is none to turn off
        return nullcontext()


def parse_device(device: str) -> torch.device:
    """Return ``'cuda'`` or ``'cuda:1'`` as a device; raise ``ConfigError`` for an unknown one."""
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
    # Where none is available, torch 2.6 raises when asked which.
    if accelerator is not None and accelerator.is_available():
        return str(accelerator.current_accelerator().type)
    for name in () if accelerator is not None else _DEVICE_MODULES:
        device_module: Any = getattr(torch, name, None)
        if hasattr(device_module, "is_available") and device_module.is_available():
            return name
    return "mps" if torch.backends.mps.is_available() else "cpu"


def first_device(optimizer: torch.optim.Optimizer) -> torch.device:
    """Return the device of the optimizer's first parameter; raise if that is the meta device."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.device.type == "meta":
                raise ConfigError(
                    "the device of autocast is that of the first parameter, which is still on "
                    "'meta'; pass device_type, such as device_type='cuda'."
                )
            return torch.device(parameter.device)
    raise ConfigError("the optimizer has no parameters; give it some before wrapping it.")


def resolve_dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype:
    """Return ``dtype`` as a user wrote it as ``torch.float16`` or ``torch.bfloat16``."""
    if dtype is None:
        return default_dtype(device.type)
    if isinstance(dtype, torch.dtype):
        dtype = str(dtype).removeprefix("torch.")
    if not isinstance(dtype, str):
        raise ConfigTypeError(
            f"dtype is {dtype!r}; it must be 'float16', 'bfloat16', 'auto', a torch.dtype or None."
        )
    if dtype == "auto":
        return torch.bfloat16 if has_native_bfloat16(device) else torch.float16
    if dtype in {"float32", "float64"}:
        raise ConfigError(
            f"dtype is {dtype}, but mixed precision computes in float16 or bfloat16; "
            "for full precision use OptimWrapper, AmpOptimWrapper(enabled=False) or "
            "autocast(enabled=False)."
        )
    if dtype not in _DTYPES:
        known = [*_DTYPES, "float32", "auto"]
        plain = dtype.lower().removeprefix("torch.")
        hint = did_you_mean(_OTHER_NAMES.get(plain, plain), known)
        raise ConfigError(f"dtype is {dtype!r}; there is {', '.join(known)}{hint}")
    return _DTYPES[dtype]


def default_dtype(device_type: str) -> torch.dtype:
    """Return the dtype that torch itself autocasts to on such a device."""
    try:
        # torch.get_autocast_dtype needs torch 2.4; this attribute is there in all versions.
        dtype: torch.dtype = torch.autocast(device_type, enabled=False).fast_dtype
    except (RuntimeError, AssertionError, AttributeError) as error:
        raise ConfigError(
            f"autocast was asked for on {device_type!r}, and torch {torch.__version__} answers: "
            f"{error} Pass a device_type that torch can autocast, such as 'cuda' or 'cpu'."
        ) from error
    return dtype


def has_native_bfloat16(device: torch.device) -> bool:
    """Whether the device computes in bfloat16 itself; torch also counts CUDA's slow emulation."""
    if device.type == "cuda" and torch.version.hip is None:
        ampere = (8, 0)  # the first generation with bfloat16 units
        return torch.cuda.get_device_capability(device) >= ampere
    device_module: Any = getattr(torch, device.type, None)
    if hasattr(device_module, "is_bf16_supported"):
        return bool(device_module.is_bf16_supported())
    return default_dtype(device.type) == torch.bfloat16


@cache  # the probe is not free, and the answer stays the same
def check_autocast(device_type: str, dtype: torch.dtype) -> None:
    """Raise unless torch really autocasts to ``dtype`` on such a device.

    torch is asked by entering an empty block; where it would warn and continue in full precision,
    this raises ``ConfigError``, or ``TorchVersionError`` if a newer torch could.
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
