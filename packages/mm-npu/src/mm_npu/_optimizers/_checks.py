"""Checks of hyper-parameters, parameters and gradients.

The checks of hyper-parameters take the names of the optimizer and of the hyper-parameter for the
error, and its value.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import Any

import torch

from mm_npu._errors import ConfigError

Check = Callable[[str, str, Any], None]
# By name, in the order of the constructor: the default, and the check.
HyperParameters = Mapping[str, tuple[Any, Check]]
REQUIRED = inspect.Parameter.empty


def accept(optimizer: str, name: str, value: Any) -> None:
    """Accept every value, as ``torch_npu`` does."""


def check_not_negative(optimizer: str, name: str, value: Any) -> None:
    """Raise ConfigError if ``value`` is no number >= 0; a tensor is not read."""
    # torch converts 0-d tensors to numbers, and takes a learning rate of one element.
    if isinstance(value, torch.Tensor) and value.numel() == 1 and (name == "lr" or not value.dim()):
        return
    # Negated, so that nan, which compares false with everything, is refused.
    if not (isinstance(value, Real) and float(value) >= 0):
        raise ConfigError(f"{name} of {optimizer} is {value!r}; it takes a number >= 0.")


def check_fraction(optimizer: str, name: str, value: Any) -> None:
    """Raise ConfigError if ``value`` is no number in [0, 1)."""
    if not (isinstance(value, Real) and 0 <= float(value) < 1):
        raise ConfigError(f"{name} of {optimizer} is {value!r}; it takes a number in [0, 1).")


def check_at_most_one(optimizer: str, name: str, value: Any) -> None:
    """Raise ConfigError if ``value`` is no number in [0, 1]."""
    if not (isinstance(value, Real) and 0 <= float(value) <= 1):
        raise ConfigError(f"{name} of {optimizer} is {value!r}; it takes a number in [0, 1].")


def check_betas(optimizer: str, name: str, value: Any) -> None:
    """Raise ConfigError if ``value`` is not two numbers in [0, 1)."""
    is_pair = isinstance(value, tuple | list) and len(value) == 2
    if not (is_pair and all(isinstance(beta, Real) and 0 <= float(beta) < 1 for beta in value)):
        raise ConfigError(f"{name} of {optimizer} is {value!r}; it takes two numbers in [0, 1).")


def check_real_parameters(optimizer: str, params: Iterable[torch.Tensor]) -> None:
    """Raise ConfigError if a parameter is complex, or of an integer dtype."""
    for p in params:
        if not p.is_floating_point():
            raise ConfigError(
                f"{optimizer} was given a parameter of shape {tuple(p.shape)} and {p.dtype}; it "
                "takes real floating point ones. Train torch.view_as_real of a complex one."
            )


def check_dense_gradients(optimizer: str, params: Iterable[torch.Tensor]) -> None:
    """Raise ConfigError if a gradient is sparse."""
    for p in params:
        if p.grad is not None and p.grad.layout is not torch.strided:
            raise ConfigError(
                f"{optimizer} found a gradient of layout {p.grad.layout} for a parameter of shape "
                f"{tuple(p.shape)}; it takes dense ones. Build the embedding with sparse=False, or "
                "give its parameters to torch.optim.SparseAdam."
            )


def is_sharded(p: Any) -> bool:
    """Return whether ``p`` is a DTensor, of which this rank has a part."""
    return type(p) is not torch.nn.Parameter and hasattr(p, "to_local")
