"""Checks of hyper-parameters, parameters and gradients."""

from collections.abc import Iterable
from numbers import Real
from typing import Any

import torch

from mm_npu._errors import ConfigError


def check_not_negative(optimizer: str, name: str, value: Any) -> None:
    """Check a number that must be at least zero.

    A tensor is accepted if it is 0-d, for ``lr`` if it has one element, and not read: that would
    wait for its device.

    Raises:
        ConfigError: If ``value`` is no real number, is below zero, or is not a number at all (nan).
    """
    # torch takes other factors as numbers, and converts to those what is 0-d.
    if isinstance(value, torch.Tensor) and value.numel() == 1 and (name == "lr" or not value.dim()):
        return
    # Negated, so that nan, which compares false with everything, is refused.
    if not (isinstance(value, Real) and float(value) >= 0):
        raise ConfigError(f"{name} of {optimizer} is {value!r}; it takes a number >= 0.")


def check_fraction(optimizer: str, name: str, value: Any) -> None:
    """Check a decay rate: a number in [0, 1).

    Raises:
        ConfigError: If ``value`` is anything else.
    """
    if not (isinstance(value, Real) and 0 <= float(value) < 1):
        raise ConfigError(f"{name} of {optimizer} is {value!r}; it takes a number in [0, 1).")


def check_at_most_one(optimizer: str, name: str, value: Any) -> None:
    """Check a number in [0, 1], both ends included.

    Raises:
        ConfigError: If ``value`` is anything else.
    """
    if not (isinstance(value, Real) and 0 <= float(value) <= 1):
        raise ConfigError(f"{name} of {optimizer} is {value!r}; it takes a number in [0, 1].")


def check_betas(optimizer: str, betas: Any) -> None:
    """Check the two decay rates of Adam's moments.

    Raises:
        ConfigError: If ``betas`` is not two numbers in [0, 1).
    """
    is_pair = isinstance(betas, tuple | list) and len(betas) == 2
    if not (is_pair and all(isinstance(beta, Real) and 0 <= float(beta) < 1 for beta in betas)):
        raise ConfigError(f"betas of {optimizer} is {betas!r}; it takes two numbers in [0, 1).")


def check_real_parameters(optimizer: str, params: Iterable[torch.Tensor]) -> None:
    """Check that every parameter is of a floating dtype.

    Raises:
        ConfigError: If one is complex, or of an integer dtype.
    """
    for p in params:
        if not p.is_floating_point():
            raise ConfigError(
                f"{optimizer} was given a parameter of shape {tuple(p.shape)} and {p.dtype}; it "
                "takes real floating point ones. Train torch.view_as_real of a complex one."
            )


def check_dense_gradients(optimizer: str, params: Iterable[torch.Tensor]) -> None:
    """Check that every gradient there is, is dense.

    Raises:
        ConfigError: If one is not.
    """
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
