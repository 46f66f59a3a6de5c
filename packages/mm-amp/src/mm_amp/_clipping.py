"""Gradient clipping, as ``clip_grad=dict(type=..., ...)`` asks for it."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from typing_extensions import override

from ._adaptive_clipping import AdaptiveClipper
from ._checks import check_keys, check_positive_number, did_you_mean
from ._clipper import AbstractClipper
from ._errors import ConfigError, ConfigTypeError, TorchVersionError
from ._norm_clipping import FusedClip, NormClipper
from ._sharded_norm import are_whole, local_part


class ValueClipper(AbstractClipper):
    """Clamp every element of every gradient to ``[-clip_value, clip_value]``."""

    known_keys = ("clip_value", "foreach")

    def __init__(self, clip_value: object, **options: Any) -> None:
        self._clip_value = check_positive_number("clip_grad clip_value", clip_value)
        self._options = options

    @override
    def clip(self, parameters: list[Tensor], model: Any) -> Tensor | None:
        if are_whole(parameters):
            clip_grad_value_(parameters, self._clip_value, **self._options)
            return None
        with torch.no_grad():  # sharded: torch cannot mix them with whole ones
            for parameter in parameters:
                local_part(parameter.grad).clamp_(-self._clip_value, self._clip_value)
        return None


_Clipper = type[NormClipper | ValueClipper | AdaptiveClipper]
# Per type: the class, the key it cannot do without, and torch's function if that does the work.
_CLIPPERS: dict[str, tuple[_Clipper, str, Callable[..., object] | None]] = {
    "norm": (NormClipper, "max_norm", clip_grad_norm_),
    "value": (ValueClipper, "clip_value", clip_grad_value_),
    "agc": (AdaptiveClipper, "clip_factor", None),
}


def build_clipper(
    clip_grad: Mapping[str, Any], optimizer: torch.optim.Optimizer | None = None
) -> AbstractClipper:
    """Build what ``clip_grad`` describes; the mapping itself is left as it is.

    Args:
        clip_grad: ``dict(max_norm=1.0)``, to which ``type='norm'``, ``norm_type`` (default 2),
            ``error_if_nonfinite`` and ``foreach`` may be added; ``dict(type='value',
            clip_value=0.5)``, to which ``foreach`` may be added; or ``dict(type='agc',
            clip_factor=0.01)``, to which ``eps`` (default 0.001) may be.
        optimizer: Asked to clip by norm itself if it can, as those of ``torch_npu`` on an NPU,
            which have all gradients in one tensor.

    Raises:
        ConfigError: If the type is unknown, or a key is unknown, missing or has a bad value.
    """
    if not isinstance(clip_grad, Mapping):
        raise ConfigTypeError(
            f"clip_grad is {clip_grad!r}; it must be a dict such as dict(max_norm=1.0), or None."
        )
    options = dict(clip_grad)
    kind = options.pop("type", "norm")
    if kind not in _CLIPPERS:
        hint = did_you_mean(str(kind), _CLIPPERS) or "."
        raise ConfigError(f"clip_grad has type {kind!r}; there is {', '.join(_CLIPPERS)}{hint}")
    clipper, required, function = _CLIPPERS[kind]
    check_keys(f"clip_grad of type {kind!r}", options, clipper.known_keys)
    if required not in options:
        raise ConfigError(f"clip_grad of type {kind!r} needs {required}; got {dict(clip_grad)}.")
    if function is not None:
        _check_foreach(function, options)
    if clipper is NormClipper:
        options["clip_fused"] = _fused_clip_of(optimizer)
    return clipper(**options)


def _fused_clip_of(optimizer: Any) -> FusedClip | None:
    """Return how an optimizer clips gradients that it has packed; None if it does not pack."""
    is_packing = getattr(optimizer, "is_fused_optimizer", False)
    return getattr(optimizer, "clip_grad_norm_fused_", None) if is_packing else None


def _check_foreach(function: Callable[..., object], options: Mapping[str, Any]) -> None:
    if "foreach" in options and "foreach" not in inspect.signature(function).parameters:
        raise TorchVersionError(
            f"clip_grad foreach is not known to {function.__name__} of torch {torch.__version__}; "
            "leave it out, or use torch 2.0 or newer."
        )
