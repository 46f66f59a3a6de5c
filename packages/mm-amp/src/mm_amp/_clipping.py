"""Gradient clipping, as ``clip_grad=dict(type=..., ...)`` asks for it."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from typing_extensions import override

from ._checks import check_bool, check_keys, check_positive_number, did_you_mean
from ._errors import ConfigError, ConfigTypeError, TorchVersionError


class AbstractClipper(ABC):
    """Changes gradients in place, just before the optimizer reads them."""

    @abstractmethod
    def clip(self, parameters: list[Tensor], model: Any) -> Tensor | None:
        """Clip the gradients of ``parameters``, all of which have one.

        Args:
            parameters: What the optimizer is about to step.
            model: The model last used in a forward, or ``None``.

        Returns:
            The total norm before clipping as a 0-d tensor on the device, or ``None`` where
            clipping does not measure it.
        """


class NormClipper(AbstractClipper):
    """Scale all gradients down together so that their total norm is at most ``max_norm``."""

    known_keys = ("max_norm", "norm_type", "error_if_nonfinite", "foreach")

    def __init__(
        self,
        max_norm: object,
        norm_type: object = 2.0,
        *,
        error_if_nonfinite: bool = False,
        **options: Any,
    ) -> None:
        self._max_norm = check_positive_number("clip_grad max_norm", max_norm)
        self._norm_type = check_positive_number("clip_grad norm_type", norm_type)
        self._error_if_nonfinite = check_bool(
            "clip_grad error_if_nonfinite", value=error_if_nonfinite
        )
        _check_foreach(clip_grad_norm_, options)
        self._options = options

    @override
    def clip(self, parameters: list[Tensor], model: Any) -> Tensor | None:
        if hasattr(model, "clip_grad_norm_"):
            # Torch's first FSDP: each rank holds flat shards, and only the model can combine them.
            total: Tensor = model.clip_grad_norm_(self._max_norm, norm_type=self._norm_type)
            return total
        norm = clip_grad_norm_(
            parameters,
            self._max_norm,
            norm_type=self._norm_type,
            error_if_nonfinite=self._error_if_nonfinite,
            **self._options,
        )
        # Sharded parameters (DTensor) give a norm that still has to be combined over the ranks.
        full_tensor = getattr(norm, "full_tensor", None)
        return norm if full_tensor is None else full_tensor()


class ValueClipper(AbstractClipper):
    """Clamp every element of every gradient to ``[-clip_value, clip_value]``."""

    known_keys = ("clip_value", "foreach")

    def __init__(self, clip_value: object, **options: Any) -> None:
        self._clip_value = check_positive_number("clip_grad clip_value", clip_value)
        _check_foreach(clip_grad_value_, options)
        self._options = options

    @override
    def clip(self, parameters: list[Tensor], model: Any) -> Tensor | None:
        clip_grad_value_(parameters, self._clip_value, **self._options)
        return None


_CLIPPERS: dict[str, tuple[type[NormClipper | ValueClipper], str]] = {
    "norm": (NormClipper, "max_norm"),
    "value": (ValueClipper, "clip_value"),
}


def build_clipper(clip_grad: Mapping[str, Any] | None) -> AbstractClipper | None:
    """Build what ``clip_grad`` describes; the mapping itself is left as it is.

    Args:
        clip_grad: ``None`` for no clipping; ``dict(max_norm=1.0)``, to which ``type='norm'``,
            ``norm_type`` (default 2), ``error_if_nonfinite`` and ``foreach`` may be added; or
            ``dict(type='value', clip_value=0.5)``.

    Raises:
        ConfigError: If the type is unknown, or a key is unknown, missing or has a bad value.
    """
    if clip_grad is None:
        return None
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
    return clipper(**options)


def _check_foreach(function: Callable[..., object], options: Mapping[str, Any]) -> None:
    if "foreach" in options and "foreach" not in inspect.signature(function).parameters:
        raise TorchVersionError(
            f"clip_grad foreach is not known to {function.__name__} of torch {torch.__version__}; "
            "leave it out, or use torch 2.0 or newer."
        )
