"""Clipping by the total norm of all gradients, sharded or not."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import utils as nn_utils
from torch.nn.utils import clip_grad_norm_
from typing_extensions import override

from ._checks import check_bool, check_positive_number
from ._clipper import AbstractClipper, check_no_first_fsdp
from ._errors import ConfigError
from ._norm_check import NormCheck
from ._sharded_norm import are_whole, local_part, total_norm_of_sharded

# Clips all gradients at once: ``clip(max_norm, norm_type=...)`` returns their norm, 0-d.
FusedClip = Callable[..., Tensor]
_CAN_CLIP_IN_TWO = hasattr(nn_utils, "clip_grads_with_norm_")  # torch 2.6


class NormClipper(AbstractClipper):
    """Scale all gradients down together so that their total norm is at most ``max_norm``."""

    known_keys = ("max_norm", "norm_type", "error_if_nonfinite", "foreach")

    def __init__(
        self,
        max_norm: object,
        norm_type: object = 2.0,
        *,
        error_if_nonfinite: bool = False,
        clip_fused: FusedClip | None = None,
        **options: Any,
    ) -> None:
        self._max_norm = check_positive_number("clip_grad max_norm", max_norm)
        self._norm_type = check_positive_number("clip_grad norm_type", norm_type)
        # Looking waits for the device, so it is done only for those who ask for it.
        self._check = (
            NormCheck()
            if check_bool("clip_grad error_if_nonfinite", value=error_if_nonfinite)
            else None
        )
        self._options = options
        # Whoever asks for foreach gets torch's.
        self._clip_fused = clip_fused if options.get("foreach") is None else None
        self._model: Any = None
        self._is_clipped_by_model = False

    @override
    def clip(self, parameters: list[Tensor], model: Any) -> Tensor | None:
        if self._clip_fused is not None:
            return self._clip_elsewhere(self._clip_fused, parameters, model)
        if model is not self._model:
            self._look_at(model)
        if self._is_clipped_by_model:
            # All parameters: ranks have gradients of different ones.
            return self._clip_elsewhere(model.clip_grad_norm_, list(model.parameters()), model)
        if are_whole(parameters):
            return self._clip_alike(parameters)
        return self._clip_sharded(parameters)

    def _look_at(self, model: Any) -> None:
        # Torch's first FSDP: each rank holds flat shards, and only the model can combine them.
        self._is_clipped_by_model = hasattr(model, "clip_grad_norm_")
        if not self._is_clipped_by_model:
            check_no_first_fsdp(model, "norm", "wrap the whole model in it, or use fully_shard.")
        elif self._options.get("foreach") is not None:
            raise ConfigError(
                f"clip_grad foreach={self._options['foreach']!r} was asked for a "
                f"{type(model).__name__}, which clips by itself and does not take it; "
                "leave foreach out."
            )
        self._model = model

    def _clip_elsewhere(self, clip: FusedClip, parameters: list[Tensor], model: Any) -> Tensor:
        if self._check is None:
            return clip(self._max_norm, norm_type=self._norm_type)
        self._check.remember(parameters)  # before: of an infinite norm clipping makes NaN and 0
        total = clip(self._max_norm, norm_type=self._norm_type)
        self._check(total, parameters, model)
        return total

    def _clip_alike(self, parameters: list[Tensor]) -> Tensor:
        if _CAN_CLIP_IN_TWO:
            return self._clip_in_two(parameters)
        if self._check is not None:  # torch's own error would not say where
            gradients = [parameter.grad for parameter in parameters]
            total = total_norm_of_sharded(gradients, self._norm_type)
            self._check(total, parameters, self._model)
        return clip_grad_norm_(
            parameters, self._max_norm, norm_type=self._norm_type, **self._options
        )

    def _clip_in_two(self, parameters: list[Tensor]) -> Tensor:
        gradients: list[Any] = [parameter.grad for parameter in parameters]
        total: Tensor = nn_utils.get_total_norm(gradients, self._norm_type, **self._options)
        if self._check is not None:
            self._check(total, parameters, self._model)
        kinds = {(gradient.device, gradient.requires_grad) for gradient in gradients}
        if kinds == {(total.device, False)} and not self._options:
            # What torch's function comes to then, for half the time: it sorts by device and dtype.
            factor = (self._max_norm / (total + 1e-6)).clamp_(max=1.0).nan_to_num_(nan=1.0)
            torch._foreach_mul_(gradients, factor)
        else:
            harmless = _without_nan(total)
            nn_utils.clip_grads_with_norm_(parameters, self._max_norm, harmless, **self._options)
        return total

    def _clip_sharded(self, parameters: list[Tensor]) -> Tensor:
        with torch.no_grad():
            gradients = [parameter.grad for parameter in parameters]
            total = total_norm_of_sharded(gradients, self._norm_type)
            if self._check is not None:
                self._check(total, parameters, self._model)
            # As torch does.
            factor = (self._max_norm / (_without_nan(total) + 1e-6)).clamp(max=1.0)
            for gradient in gradients:
                local_part(gradient).mul_(factor)
        return total


def _without_nan(total: Tensor) -> Tensor:
    """Return a norm that scales nothing instead of one that makes every gradient NaN.

    The step is lost either way, and which gradients were NaN before stays visible.
    """
    return total.nan_to_num(nan=0.0, posinf=math.inf)
