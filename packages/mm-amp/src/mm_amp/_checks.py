"""Checks of arguments."""

import math
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any

from mm_amp._errors import ConfigError


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for a near miss of a known name, else ``"."``."""
    from difflib import get_close_matches  # noqa: PLC0415 - only for messages

    near = get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else "."


def check_keys(name: str, given: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raise ``ConfigError`` for the first key of ``given`` that is not in ``known``."""
    known = sorted(known)
    for key in given:
        if key not in known:
            hint = did_you_mean(str(key), known)
            raise ConfigError(f"{name} has no key {key!r}; it takes {', '.join(known)}{hint}")


def check_count(name: str, value: Any, least: int = 0) -> int:
    """Return ``value`` as an int of at least ``least``, or raise ``ConfigError``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ConfigError(f"{name} is {value!r}; it must be an integer of at least {least}.")
    return int(value)


def check_number(name: str, value: Any, *, is_finite: bool = False) -> float:
    """Return ``value`` as a float above zero, or raise ``ConfigError``."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not value > 0 or (is_finite and math.isinf(value)):  # "not >" refuses NaN
        kind = "a finite number" if is_finite else "a number"
        raise ConfigError(f"{name} is {value!r}; it must be {kind} above 0.")
    return float(value)


def check_bool(name: str, value: object) -> bool:
    """Return ``value`` if it is a bool, or raise ``ConfigError``."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r}; it must be True or False.")
    return value
