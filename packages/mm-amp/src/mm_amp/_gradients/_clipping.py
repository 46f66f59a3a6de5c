"""Gradient clipping: by total norm, by value, or adaptively, as ``clip_grad=dict(type=...)``.

A clipper changes gradients in place, just before the optimizer reads them. Its ``clip`` takes the
parameters to be stepped, all of which have a gradient. It returns the total norm before clipping
as a 0-d tensor on the device, or ``None`` where clipping does not measure it.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_value_

from mm_amp._checks import check_bool, check_keys, check_number, did_you_mean
from mm_amp._errors import ConfigError, ConfigTypeError, NonFiniteError
from mm_amp._gradients._norms import (
    are_whole,
    local_part,
    scale_gradients,
    total_norm,
)

_SMALLEST_NORM = 1e-6  # of a gradient, instead of dividing by 0, as in the paper's code


class NormClipper:
    """Scale all gradients down together so that their total norm is at most ``max_norm``."""

    keys = ("max_norm", "norm_type", "error_if_nonfinite")

    def __init__(
        self,
        optimizer: Any,
        max_norm: object,
        norm_type: object = 2.0,
        *,
        error_if_nonfinite: object = False,
    ) -> None:
        self._max_norm = check_number("clip_grad max_norm", max_norm)
        self._norm_type = check_number("clip_grad norm_type", norm_type)
        self._checks = check_bool("clip_grad error_if_nonfinite", value=error_if_nonfinite)
        # torch_npu's fused optimizers hold all gradients in one buffer.
        is_packed = getattr(optimizer, "is_fused_optimizer", False) and not self._checks
        self._clip_packed: Any = is_packed and getattr(optimizer, "clip_grad_norm_fused_", None)

    def clip(self, parameters: list[Tensor]) -> Tensor | None:
        """Clip the gradients; see the module."""
        total: Tensor
        if self._clip_packed:
            total = self._clip_packed(self._max_norm, norm_type=self._norm_type)
            return total
        gradients = [parameter.grad for parameter in parameters]
        total = total_norm(gradients, self._norm_type)
        if self._checks and not bool(total.isfinite()):
            raise NonFiniteError(
                f"the total norm of the gradients is {float(total):g}, and clip_grad has "
                "error_if_nonfinite=True, so nothing was stepped. With a loss scaler, leave it "
                "out: such a step is then skipped, and max_skips limits how often."
            )
        # A total of NaN scales nothing: the step is lost, and the bad gradients stay visible.
        factor = (self._max_norm / (total + 1e-6)).clamp_(max=1.0).nan_to_num_(nan=1.0)
        scale_gradients(gradients, factor)
        return total


class ValueClipper:
    """Clamp every element of every gradient to ``[-clip_value, clip_value]``."""

    keys = ("clip_value",)

    def __init__(self, _optimizer: Any, clip_value: object) -> None:
        self._clip_value = check_number("clip_grad clip_value", clip_value)

    def clip(self, parameters: list[Tensor]) -> Tensor | None:
        """Clip the gradients; see the module."""
        if are_whole([parameter.grad for parameter in parameters]):
            clip_grad_value_(parameters, self._clip_value)
            return None
        with torch.no_grad():  # sharded: torch cannot mix them with whole ones
            for parameter in parameters:
                local_part(parameter.grad).clamp_(-self._clip_value, self._clip_value)
        return None


class AdaptiveClipper:
    """Clip each output unit of each parameter by its own norm.

    For each row ``i`` of a weight ``W`` with gradient ``G``, and for a vector as a whole::

        G_i *= min(1, clip_factor * max(|W_i|, eps) / |G_i|)

    From "High-Performance Large-Scale Image Recognition Without Normalization" (Brock, De, Smith
    and Simonyan, 2021, arXiv:2102.06171), section 4.
    """

    keys = ("clip_factor", "eps")

    def __init__(self, _optimizer: Any, clip_factor: object, eps: object = 1e-3) -> None:
        self._clip_factor = check_number("clip_grad clip_factor", clip_factor, is_finite=True)
        self._eps = check_number("clip_grad eps", eps, is_finite=True)

    @torch.no_grad()
    def clip(self, parameters: list[Any]) -> Tensor | None:
        """Clip the gradients; see the module."""
        for parameter in parameters:
            weight, gradient = parameter.detach(), parameter.grad
            allowed = _unit_norms(weight).clamp(min=self._eps) * self._clip_factor
            norms = _unit_norms(gradient).clamp(min=_SMALLEST_NORM)
            gradient.mul_((allowed / norms).clamp(max=1.0))
        return None


_CLIPPERS: dict[str, Any] = {"norm": NormClipper, "value": ValueClipper, "agc": AdaptiveClipper}


def build_clipper(clip_grad: Mapping[str, Any], optimizer: Any) -> Any:
    """Build the clipper that ``clip_grad`` of an ``OptimWrapper`` describes."""
    if not isinstance(clip_grad, Mapping):
        raise ConfigTypeError(
            f"clip_grad is {clip_grad!r}; it must be a dict such as dict(max_norm=1.0), or None."
        )
    options = dict(clip_grad)
    kind = options.pop("type", "norm")
    if kind not in _CLIPPERS:
        hint = did_you_mean(str(kind), _CLIPPERS)
        raise ConfigError(f"clip_grad has type {kind!r}; there is {', '.join(_CLIPPERS)}{hint}")
    clipper = _CLIPPERS[kind]
    check_keys(f"clip_grad of type {kind!r}", options, clipper.keys)
    required = clipper.keys[0]
    if required not in options:
        raise ConfigError(f"clip_grad of type {kind!r} needs {required}; got {dict(clip_grad)}.")
    return clipper(optimizer, **options)


def _unit_norms(tensor: Tensor) -> Tensor:
    """Return the norm of each row, shape ``(n, 1, ...)``; of a vector as a whole, 0-d."""
    is_half = tensor.dtype in (torch.float16, torch.bfloat16)
    dtype = torch.float32 if is_half else None
    rows = tuple(range(1, tensor.ndim)) or None
    norms: Tensor = torch.linalg.vector_norm(tensor, dim=rows, keepdim=bool(rows), dtype=dtype)
    return norms
