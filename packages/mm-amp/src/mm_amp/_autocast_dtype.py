"""Which dtype a device autocasts to: what the user wrote, torch's choice, or what is native."""

from typing import Any

import torch

from ._checks import did_you_mean
from ._errors import ConfigError, ConfigTypeError

_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
_FULL_DTYPES = {"float32": torch.float32, "float64": torch.float64}
_OTHER_NAMES = {
    **dict.fromkeys(("fp16", "half", "16", "16-mixed"), "float16"),
    **dict.fromkeys(("bf16", "bf16-mixed"), "bfloat16"),
    **dict.fromkeys(("fp32", "float", "full", "single", "32", "no", "tf32"), "float32"),
}


def resolve_dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype:
    """Turn what a user wrote into ``torch.float16`` or ``torch.bfloat16``.

    Raises:
        ConfigError: If ``dtype`` names neither of them.
    """
    if dtype is None:
        return default_dtype(device.type)
    if dtype == "auto":
        return torch.bfloat16 if has_native_bfloat16(device) else torch.float16
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
    """Return the dtype that torch itself autocasts to on such a device.

    Raises:
        ConfigError: If torch cannot autocast there.
    """
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


def is_dtype_name(value: object) -> bool:
    """Whether ``value`` names a dtype, rightly or by another name that is in use."""
    return isinstance(value, str) and value in ("auto", *_DTYPES, *_FULL_DTYPES, *_OTHER_NAMES)


def _dtype_named(name: str) -> torch.dtype:
    if name in _FULL_DTYPES:
        raise _not_mixed(name)
    if name not in _DTYPES:
        known = [*_DTYPES, "float32", "auto"]
        plain = name.lower().removeprefix("torch.")
        hint = did_you_mean(_OTHER_NAMES.get(plain, plain), known) or "."
        raise ConfigError(f"dtype is {name!r}; there is {', '.join(known)}{hint}")
    return _DTYPES[name]


def _not_mixed(name: str) -> ConfigError:
    return ConfigError(
        f"dtype is {name}, but mixed precision computes in float16 or bfloat16; "
        "for full precision use OptimWrapper, AmpOptimWrapper(enabled=False) or "
        "autocast(enabled=False)."
    )
