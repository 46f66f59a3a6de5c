"""Checks of hyper-parameters, with the value and the range in the message."""

from numbers import Real
from typing import Any

from mm_npu._errors import ConfigError


def check_not_negative(optimizer: str, name: str, value: Any) -> None:
    """Check a number that must be at least zero.

    Raises:
        ConfigError: If ``value`` is no real number, is below zero, or is not a number at all (nan).
    """
    # Negated, so that nan, which compares false with everything, is refused.
    if not (isinstance(value, Real) and float(value) >= 0):
        raise ConfigError(f"{name} of {optimizer} is {value!r}; it takes a number >= 0.")


def check_betas(optimizer: str, betas: Any) -> None:
    """Check the two decay rates of Adam's moments.

    Raises:
        ConfigError: If ``betas`` is not two numbers in [0, 1).
    """
    is_pair = isinstance(betas, tuple | list) and len(betas) == 2
    if not (is_pair and all(isinstance(beta, Real) and 0 <= float(beta) < 1 for beta in betas)):
        raise ConfigError(f"betas of {optimizer} is {betas!r}; it takes two numbers in [0, 1).")
