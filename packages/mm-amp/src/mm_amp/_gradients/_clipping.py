"""Gradient clipping: by total norm, by value, or adaptively, as ``clip_grad=dict(type=...)``."""

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import utils as nn_utils
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from typing_extensions import override

from mm_amp._checks import (
    check_bool,
    check_finite_number,
    check_keys,
    check_positive_number,
    did_you_mean,
)
from mm_amp._errors import ConfigError, ConfigTypeError, NonFiniteError, TorchVersionError
from mm_amp._gradients._norms import (
    are_whole,
    local_norms,
    norms_on_all_ranks,
    total_norm_of_sharded,
)
from mm_amp._model._names import NamedParameter, named_parameters
from mm_amp._model._parameters import first_fsdp_modules, local_part
from mm_amp._scaling._locator import describe_nonfinite
from mm_amp._torch_private import foreach_mul_

_CAN_CLIP_IN_TWO = hasattr(nn_utils, "clip_grads_with_norm_")  # torch 2.6
_SMALLEST_NORM = 1e-6  # of a gradient, instead of dividing by 0, as in the paper's code


class Clipper(ABC):
    """Changes gradients in place, just before the optimizer reads them."""

    known_keys: tuple[str, ...]

    @abstractmethod
    def clip(self, parameters: list[Tensor], model: Any) -> Tensor | None:
        """Clip the gradients of ``parameters``, all of which have one.

        Args:
            parameters: Those that the optimizer is about to step.
            model: The model last used in a forward, or ``None``.

        Returns:
            The total norm before clipping as a 0-d tensor on the device, or ``None`` where
            clipping does not measure it.
        """


class NormClipper(Clipper):
    """Scale all gradients down together so that their total norm is at most ``max_norm``."""

    known_keys = ("max_norm", "norm_type", "error_if_nonfinite", "foreach")

    def __init__(
        self,
        max_norm: object,
        norm_type: object = 2.0,
        *,
        error_if_nonfinite: bool = False,
        clip_packed: Callable[..., Tensor] | None = None,
        **options: Any,
    ) -> None:
        self._max_norm = check_positive_number("clip_grad max_norm", max_norm)
        self._norm_type = check_positive_number("clip_grad norm_type", norm_type)
        self._checks = check_bool("clip_grad error_if_nonfinite", value=error_if_nonfinite)
        self._options = options
        # An explicit foreach= asks for torch's clipping.
        self._clip_packed = clip_packed if options.get("foreach") is None else None
        self._model: Any = None
        self._is_clipped_by_model = False

    @override
    def clip(self, parameters: list[Tensor], model: Any) -> Tensor | None:
        if self._clip_packed is not None:
            return self._clip_by(self._clip_packed, parameters, model)
        if model is not self._model:
            self._inspect(model)
        if self._is_clipped_by_model:
            # All parameters: ranks have gradients of different ones.
            return self._clip_by(model.clip_grad_norm_, list(model.parameters()), model)
        if not are_whole(parameters):
            return self._clip_sharded(parameters)
        return self._clip_in_two(parameters) if _CAN_CLIP_IN_TWO else self._clip_at_once(parameters)

    def _inspect(self, model: Any) -> None:
        # Torch's first FSDP: each rank holds flat shards, and only the model can combine them.
        self._is_clipped_by_model = hasattr(model, "clip_grad_norm_")
        if not self._is_clipped_by_model:
            _check_no_first_fsdp(model, "norm", "wrap the whole model in it, or use fully_shard.")
        elif self._options.get("foreach") is not None:
            raise ConfigError(
                f"clip_grad foreach={self._options['foreach']!r} was asked for a "
                f"{type(model).__name__}, which clips by itself and does not take it; "
                "leave foreach out."
            )
        self._model = model

    def _clip_by(self, clip: Callable[..., Tensor], parameters: list[Tensor], model: Any) -> Tensor:
        # Before: clipping by an infinite norm leaves NaN and 0.
        norms = local_norms(parameters) if self._checks else None
        total = clip(self._max_norm, norm_type=self._norm_type)
        self._check(total, parameters, model, norms)
        return total

    def _clip_in_two(self, parameters: list[Tensor]) -> Tensor:
        gradients: list[Any] = [parameter.grad for parameter in parameters]
        total: Tensor = nn_utils.get_total_norm(gradients, self._norm_type, **self._options)
        self._check(total, parameters, self._model)
        kinds = {(gradient.device, gradient.requires_grad) for gradient in gradients}
        if kinds == {(total.device, False)} and not self._options:
            # Torch's own function for half the time: it sorts by device and dtype first.
            factor = (self._max_norm / (total + 1e-6)).clamp_(max=1.0).nan_to_num_(nan=1.0)
            foreach_mul_(gradients, factor)
        else:
            harmless = _without_nan(total)
            nn_utils.clip_grads_with_norm_(parameters, self._max_norm, harmless, **self._options)
        return total

    def _clip_at_once(self, parameters: list[Tensor]) -> Tensor:
        if self._checks:
            gradients = [parameter.grad for parameter in parameters]
            self._check(total_norm_of_sharded(gradients, self._norm_type), parameters, self._model)
        return clip_grad_norm_(
            parameters, self._max_norm, norm_type=self._norm_type, **self._options
        )

    def _clip_sharded(self, parameters: list[Tensor]) -> Tensor:
        with torch.no_grad():
            gradients = [parameter.grad for parameter in parameters]
            total = total_norm_of_sharded(gradients, self._norm_type)
            self._check(total, parameters, self._model)
            factor = (self._max_norm / (_without_nan(total) + 1e-6)).clamp(max=1.0)
            for gradient in gradients:
                local_part(gradient).mul_(factor)
        return total

    def _check(
        self, total: Tensor, parameters: list[Tensor], model: Any, norms: Tensor | None = None
    ) -> None:
        """Raise ``NonFiniteError``, on all ranks, if asked to and ``total`` is not finite."""
        if not self._checks or bool(total.isfinite()):
            return
        norms = local_norms(parameters) if norms is None else norms
        values = norms_on_all_ranks(norms, parameters, model).tolist()
        known = {id(one.parameter): one for one in named_parameters(model)}
        named = [
            known.get(id(one)) or NamedParameter(f"gradient {index}", "", None, one)
            for index, one in enumerate(parameters)
        ]
        found, _ = describe_nonfinite(named, values)
        raise NonFiniteError(
            f"the total norm of the gradients is {float(total):g}, and clip_grad has "
            "error_if_nonfinite=True, so nothing was stepped. "
            f"{found or f'Each alone is finite: together they are too large for {total.dtype}.'} "
            "With a loss scaler, leave error_if_nonfinite out: such a step is then skipped, and "
            "max_skips limits how often."
        )


class ValueClipper(Clipper):
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


class AdaptiveClipper(Clipper):
    """Clip each output unit of each parameter by its own norm.

    For each row ``i`` of a weight ``W`` with gradient ``G``, and for a vector as a whole::

        G_i *= min(1, clip_factor * max(|W_i|, eps) / |G_i|)

    From "High-Performance Large-Scale Image Recognition Without Normalization" (Brock, De, Smith
    and Simonyan, 2021, arXiv:2102.06171), section 4.
    """

    known_keys = ("clip_factor", "eps")

    def __init__(self, clip_factor: object, eps: object = 1e-3) -> None:
        self._clip_factor = check_finite_number("clip_grad clip_factor", clip_factor)
        self._eps = check_finite_number("clip_grad eps", eps)
        self._model: Any = None

    @override
    def clip(self, parameters: list[Tensor], model: Any) -> Tensor | None:
        if model is not self._model:
            _check_no_first_fsdp(model, "agc", "use fully_shard, or clip by norm.")
            self._model = model
        with torch.no_grad():
            for parameter in parameters:
                weight, gradient = _parts_with_whole_units(parameter)
                allowed = _unit_norms(weight).clamp(min=self._eps) * self._clip_factor
                norms = _unit_norms(gradient).clamp(min=_SMALLEST_NORM)
                gradient.mul_((allowed / norms).clamp(max=1.0))
        return None


def build_clipper(clip_grad: Mapping[str, Any], optimizer: Any) -> Clipper:
    """Build the clipper that ``clip_grad`` describes; the mapping itself is left as it is.

    Args:
        clip_grad: As of ``OptimWrapper``.
        optimizer: One that packs its gradients, as those of ``torch_npu`` on an NPU, clips them by
            norm itself.

    Raises:
        ConfigError: If the type is unknown, or a key is unknown, missing or has a bad value.
        TorchVersionError: If this torch clips without ``foreach``.
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
    clipper, required = _CLIPPERS[kind]
    check_keys(f"clip_grad of type {kind!r}", options, clipper.known_keys)
    if required not in options:
        raise ConfigError(f"clip_grad of type {kind!r} needs {required}; got {dict(clip_grad)}.")
    if "foreach" in options and "foreach" not in inspect.signature(clip_grad_norm_).parameters:
        raise TorchVersionError(
            f"clip_grad foreach is not known to torch {torch.__version__}; leave it out, or use "
            "torch 2.0 or newer."
        )
    if kind == "norm" and getattr(optimizer, "is_fused_optimizer", False):
        options["clip_packed"] = getattr(optimizer, "clip_grad_norm_fused_", None)
    built: Clipper = clipper(**options)
    return built


# Per type: the class, and its required key.
_CLIPPERS: dict[str, tuple[Any, str]] = {
    "norm": (NormClipper, "max_norm"),
    "value": (ValueClipper, "clip_value"),
    "agc": (AdaptiveClipper, "clip_factor"),
}


def _check_no_first_fsdp(model: Any, kind: str, remedy: str) -> None:
    """Raise ``ConfigError`` if torch's first FSDP is inside ``model``: ranks hold flat shards."""
    if first_fsdp_modules(model):
        raise ConfigError(
            f"clip_grad of type {kind!r} was asked for a {type(model).__name__} with parts that "
            f"FullyShardedDataParallel has flattened and split; {remedy}"
        )


def _without_nan(total: Tensor) -> Tensor:
    """Return a norm that scales nothing instead of one that makes every gradient NaN.

    The step is lost either way, and the gradients that were NaN before stay visible.
    """
    return total.nan_to_num(nan=0.0, posinf=math.inf)


def _unit_norms(tensor: Tensor) -> Tensor:
    """Return the norm of each row, shape ``(n, 1, ...)``; of a vector as a whole, 0-d."""
    is_half = tensor.dtype in (torch.float16, torch.bfloat16)
    dtype = torch.float32 if is_half else None
    rows = tuple(range(1, tensor.ndim)) or None
    norms: Tensor = torch.linalg.vector_norm(tensor, dim=rows, keepdim=bool(rows), dtype=dtype)
    return norms


def _parts_with_whole_units(parameter: Any) -> tuple[Tensor, Tensor]:
    """Return parameter and gradient, or their local parts if no unit is cut through.

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
