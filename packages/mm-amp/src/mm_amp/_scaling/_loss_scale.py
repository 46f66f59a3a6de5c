"""The argument ``loss_scale``, and torch's gradient scaler built from it."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from mm_amp._checks import (
    check_bool,
    check_count,
    check_finite_number,
    check_keys,
    did_you_mean,
    is_number,
)
from mm_amp._errors import ConfigError, ConfigTypeError, TorchVersionError

_DYNAMIC = "dynamic"
_OPTIONS = ("init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled")


def parse_loss_scale(loss_scale: Any) -> tuple[dict[str, Any], float | None]:
    """Return arguments of torch's ``GradScaler``, and the factor if it never changes.

    Raises:
        ConfigError: If it is not ``'dynamic'``, a number above 0, or a dict of ``GradScaler``
            arguments with values that torch accepts.
    """
    if isinstance(loss_scale, str) and loss_scale == _DYNAMIC:
        return {}, None
    if is_number(loss_scale):
        static = check_finite_number("loss_scale", loss_scale)
        return {"init_scale": static}, static
    if isinstance(loss_scale, Mapping):
        return _check_options(loss_scale), None
    hint = did_you_mean(loss_scale, [_DYNAMIC]) if isinstance(loss_scale, str) else ""
    if isinstance(loss_scale, torch.dtype) or "float" in str(loss_scale):
        hint = f"; did you mean dtype={loss_scale!r}?"
    raise ConfigTypeError(
        f"loss_scale is {loss_scale!r}; it must be {_DYNAMIC!r}, a number (a factor that never "
        f"changes), or a dict of GradScaler arguments such as dict(init_scale=1024.0){hint or '.'}"
    )


def _check_options(given: Mapping[str, Any]) -> dict[str, Any]:
    check_keys("loss_scale", given, _OPTIONS)
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
    check_count("loss_scale growth_interval", options.get("growth_interval", 1), least=1)
    check_bool("loss_scale enabled", options.get("enabled", True))
    return options


def build_scaler(options: Mapping[str, Any], device_type: str) -> Any:
    """Build the gradient scaler of a device.

    Raises:
        TorchVersionError: If this torch has no scaler for the device.
    """
    device_module = getattr(torch, device_type, None)
    own = getattr(getattr(device_module, "amp", None), "GradScaler", None)
    general = getattr(torch.amp, "GradScaler", None)  # torch 2.3
    # torch.cuda.amp's and torch.cpu.amp's are deprecated; a backend's own knows its hardware.
    scaler_class: Any = general or own if device_type in {"cpu", "cuda"} else own or general
    if scaler_class is None:
        raise TorchVersionError(
            f"a loss scaler was asked for on {device_type!r}, which torch {torch.__version__} "
            "lacks; use dtype='bfloat16', which needs no scaler, or torch 2.4 or newer."
        )
    if "device" in inspect.signature(scaler_class).parameters:
        return scaler_class(device=device_type, **options)
    return scaler_class(**options)
