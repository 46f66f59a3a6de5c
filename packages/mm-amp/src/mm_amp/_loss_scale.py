"""What ``loss_scale`` asks for, and torch's scaler built from it."""

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from ._autocast_dtype import is_dtype_name
from ._checks import (
    check_bool,
    check_finite_number,
    check_keys,
    check_positive_int,
    did_you_mean,
    is_number,
)
from ._errors import ConfigError, ConfigTypeError, TorchVersionError

_DYNAMIC = "dynamic"
_KNOWN_KEYS = ("init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled")


class LossScale(NamedTuple):
    """How the loss of a float16 run is scaled.

    Attributes:
        options: Arguments of torch's ``GradScaler``.
        static: The factor, if it never changes.
    """

    options: Mapping[str, Any]
    static: float | None = None


def parse_loss_scale(loss_scale: Any, *, use_fsdp: bool) -> LossScale:
    """Check ``loss_scale`` as a user wrote it; a dict is copied.

    Raises:
        ConfigError: If it is not ``'dynamic'``, a number above 0, or a dict of ``GradScaler``
            arguments with values that torch accepts.
    """
    if isinstance(loss_scale, str) and loss_scale == _DYNAMIC:
        return LossScale({})
    if is_number(loss_scale):
        static = check_finite_number("loss_scale", loss_scale)
        return LossScale({"init_scale": static}, static)
    if isinstance(loss_scale, Mapping):
        return LossScale(_check_options(loss_scale, use_fsdp=use_fsdp))
    hint = did_you_mean(loss_scale, [_DYNAMIC]) if isinstance(loss_scale, str) else ""
    if isinstance(loss_scale, torch.dtype) or is_dtype_name(loss_scale):
        hint = f"; did you mean dtype={loss_scale!r}?"
    raise ConfigTypeError(
        f"loss_scale is {loss_scale!r}; it must be {_DYNAMIC!r}, a number (a factor that never "
        f"changes), or a dict of GradScaler arguments such as dict(init_scale=1024.0){hint or '.'}"
    )


def _check_options(given: Mapping[str, Any], *, use_fsdp: bool) -> dict[str, Any]:
    sharded_keys = ("process_group",) if use_fsdp else ()
    check_keys("loss_scale", given, (*_KNOWN_KEYS, *sharded_keys))
    options = dict(given)
    for key in ("init_scale", "growth_factor", "backoff_factor"):
        if key in options:
            options[key] = check_finite_number(f"loss_scale {key}", options[key])
    if options.get("growth_factor", 2.0) <= 1:
        raise ConfigError(
            f"loss_scale growth_factor is {options['growth_factor']}; it must be > 1."
        )
    if options.get("backoff_factor", 0.5) >= 1:
        raise ConfigError(
            f"loss_scale backoff_factor is {options['backoff_factor']}; it must be < 1."
        )
    if "growth_interval" in options:
        check_positive_int("loss_scale growth_interval", options["growth_interval"])
    if "enabled" in options:
        check_bool("loss_scale enabled", options["enabled"])
    return options


def build_torch_scaler(scale: LossScale, device_type: str, *, use_fsdp: bool) -> Any:
    """Build torch's gradient scaler for a device, by whichever of its names this torch has.

    Raises:
        TorchVersionError: If this torch has no scaler for the device.
    """
    scaler_class = _sharded_scaler_class() if use_fsdp else _scaler_class(device_type)
    if "device" in inspect.signature(scaler_class).parameters:
        return scaler_class(device=device_type, **scale.options)
    if device_type == "cpu":
        raise TorchVersionError(
            f"{scaler_class.__name__} was asked for on cpu, which torch {torch.__version__} lacks; "
            "use dtype='bfloat16', which needs no scaler, or torch 2.4 or newer."
        )
    return scaler_class(**scale.options)


def _scaler_class(device_type: str) -> Any:
    device_module = getattr(torch, device_type, None)
    device_scaler = getattr(getattr(device_module, "amp", None), "GradScaler", None)
    general_scaler = getattr(torch.amp, "GradScaler", None)  # torch 2.3
    if device_type in {"cpu", "cuda"}:
        # torch.cuda.amp.GradScaler and torch.cpu.amp.GradScaler are deprecated where it exists.
        scaler_class = general_scaler or device_scaler
    else:
        # A backend's own scaler knows how its hardware reports an overflow.
        scaler_class = device_scaler or general_scaler
    if scaler_class is None:
        raise TorchVersionError(
            f"a loss scaler was asked for on {device_type!r}, which torch {torch.__version__} "
            "lacks; use dtype='bfloat16', which needs no scaler, or torch 2.4 or newer."
        )
    return scaler_class


def _sharded_scaler_class() -> Any:
    # Imported late: torch.distributed.fsdp takes seconds to import, and few need it.
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler  # noqa: PLC0415

    return ShardedGradScaler
