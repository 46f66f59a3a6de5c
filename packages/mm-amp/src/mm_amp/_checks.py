"""Checks of arguments."""

import math
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from mm_amp._errors import ConfigError, ConfigTypeError


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for a near miss of a known name, else an empty string."""
    from difflib import get_close_matches  # noqa: PLC0415 - only for messages

    near = get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def check_keys(name: str, given: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raise ``ConfigError`` for the first key of ``given`` that is not in ``known``."""
    known = sorted(known)
    for key in given:
        if key not in known:
            hint = did_you_mean(str(key), known) or "."
            raise ConfigError(f"{name} has no key {key!r}; it takes {', '.join(known)}{hint}")


def is_number(value: Any) -> bool:
    """Whether ``value`` is a real number; True and False are not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_count(name: str, value: Any, least: int = 0) -> int:
    """Return ``value`` as an int of at least ``least``, or raise ``ConfigError``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ConfigError(f"{name} is {value!r}; it must be an integer of at least {least}.")
    return int(value)


def check_positive_number(name: str, value: Any) -> float:
    """Return ``value`` as a float above zero (infinity included), or raise ``ConfigError``."""
    if not is_number(value) or not value > 0:  # "not >" also refuses NaN
        raise ConfigError(f"{name} is {value!r}; it must be a number above 0.")
    return float(value)


def check_finite_number(name: str, value: Any) -> float:
    """Return ``value`` as a finite float above zero, or raise ``ConfigError``."""
    number = check_positive_number(name, value)
    if math.isinf(number):
        raise ConfigError(f"{name} is {value!r}; it must be finite.")
    return number


def check_bool(name: str, value: object) -> bool:
    """Return ``value`` if it is a bool, or raise ``ConfigError``."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r}; it must be True or False.")
    return value


def check_optimizer(optimizer: object) -> torch.optim.Optimizer:
    """Return ``optimizer`` if it is one of torch's, or raise ``ConfigTypeError``."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigTypeError(
            f"optimizer is a {type(optimizer).__name__}; it must be a torch.optim.Optimizer, "
            "such as torch.optim.SGD(model.parameters(), lr=0.1)."
        )
    return optimizer


def check_weight(weight: object) -> float | Tensor:
    """Return ``weight`` as a float of at least 0, or a one-element tensor as it is.

    Raises:
        ConfigError: If it is neither. The value of a tensor is not read: that may wait for the
            device.
    """
    if isinstance(weight, Tensor):
        if weight.numel() != 1 or weight.is_complex():
            raise ConfigError(
                f"weight has shape {tuple(weight.shape)} and dtype {weight.dtype}; it must be one "
                "real number, such as the number of samples or tokens behind the loss."
            )
        return weight
    if not is_number(weight):
        raise ConfigTypeError(
            f"weight is {weight!r}; it must be a number or a 0-d tensor, such as the number of "
            "samples or tokens behind the loss."
        )
    number = float(weight)  # type: ignore[arg-type]
    if not 0 <= number < math.inf:
        raise ConfigError(f"weight is {weight!r}; it must be finite and at least 0.")
    return number


def check_loss(loss: object) -> Tensor:
    """Return ``loss`` if it is a one-element tensor with a gradient, or raise ``ConfigError``.

    Only metadata is read: the check never waits for the device.
    """
    if not isinstance(loss, Tensor):
        raise ConfigTypeError(
            f"loss is a {type(loss).__name__}; it must be one tensor: add several losses up first."
        )
    if loss.numel() != 1:
        raise ConfigError(
            f"loss has shape {tuple(loss.shape)}; it must have one element: "
            "reduce it with loss.mean() or loss.sum()."
        )
    if not loss.requires_grad:
        raise ConfigError(
            "loss does not require a gradient: was the forward run under torch.no_grad(), "
            "was the loss detached, or is every parameter frozen?"
        )
    return loss
