"""Adaptive gradient clipping: no unit's gradient may be large against the unit itself.

From "High-Performance Large-Scale Image Recognition Without Normalization" (Brock, De, Smith and
Simonyan, 2021, arXiv:2102.06171), section 4. For each unit ``i`` of a weight ``W`` with gradient
``G``::

    G_i *= min(1, clip_factor * max(|W_i|, eps) / |G_i|)
"""

from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from ._checks import check_finite_number
from ._clipper import AbstractClipper, check_no_first_fsdp

_SMALLEST = 1e-6  # of a gradient's norm, instead of dividing by 0; the paper's code has it too


class AdaptiveClipper(AbstractClipper):
    """Clip each output unit of each parameter by its own norm.

    A unit is a row: what leads to one output of a linear layer, one filter of a convolution. A bias
    or another vector is one unit as a whole.
    """

    known_keys = ("clip_factor", "eps")

    def __init__(self, clip_factor: object, eps: object = 1e-3) -> None:
        self._clip_factor = check_finite_number("clip_grad clip_factor", clip_factor)
        self._eps = check_finite_number("clip_grad eps", eps)
        self._model: Any = None

    @override
    def clip(self, parameters: list[Tensor], model: Any) -> Tensor | None:
        if model is not self._model:
            check_no_first_fsdp(model, "agc", "use fully_shard, or clip by norm.")
            self._model = model
        with torch.no_grad():
            for parameter in parameters:
                self._clip_units(*_parts_with_whole_units(parameter))
        return None

    def _clip_units(self, weight: Tensor, gradient: Tensor) -> None:
        allowed = _unit_norms(weight).clamp(min=self._eps) * self._clip_factor
        factor = (allowed / _unit_norms(gradient).clamp(min=_SMALLEST)).clamp(max=1.0)
        gradient.mul_(factor)


def _unit_norms(tensor: Tensor) -> Tensor:
    """Return the norm of each row, shape ``(n, 1, ...)``; of a vector as a whole, 0-d."""
    is_half = tensor.dtype in (torch.float16, torch.bfloat16)
    dtype = torch.float32 if is_half else None
    rows = tuple(range(1, tensor.ndim))
    norms: Tensor = (
        torch.linalg.vector_norm(tensor, dim=rows, keepdim=True, dtype=dtype)
        if rows
        else torch.linalg.vector_norm(tensor, dtype=dtype)
    )
    return norms


def _parts_with_whole_units(parameter: Any) -> tuple[Tensor, Tensor]:
    """Return parameter and gradient, or what of them is on this rank if no unit is cut through.

    A sharded vector is cut: its norms are then computed over the ranks, by DTensor itself.
    """
    weight, gradient = parameter.detach(), parameter.grad
    placements = getattr(gradient, "placements", None)
    if placements is None or weight.ndim <= 1:
        return weight, gradient
    cuts_units = any(
        placement.is_partial() or any(map(placement.is_shard, range(1, weight.ndim)))
        for placement in placements
    )
    return (weight, gradient) if cuts_units else (weight.to_local(), gradient.to_local())
