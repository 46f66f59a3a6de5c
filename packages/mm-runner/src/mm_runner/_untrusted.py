"""Validate values read from a file."""

from __future__ import annotations

import math
from collections import OrderedDict
from itertools import chain
from pathlib import PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

# Raised by code that loads values of other types or sizes than it saves.
CONTENT_ERRORS = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError),
    ValueError,
)
_MOST_LEVELS = 64
# The state of a generator may be an integer of several hundred bits.
_MOST_BITS = 4096
_FREE = 10_000
_BITS_OF_TENSORS = 64
_LONGEST_NAME = 255  # of file systems
_LEAVES = (str, float, bool, type(None))


def check_nesting(value: Any, num_bytes: int) -> None:
    """Refuse a value of a file that is too deep, or unfolds to more values than the file has bytes.

    Args:
        value: Read from a file.
        num_bytes: Size of the file. A value that stands in several places counts in each of them,
            and all together may not be more values than the file has bytes.

    Raises:
        ValueError: If it is nested too deeply, contains itself, or counts too many values.
    """
    # By identity: how many values and levels; ``None`` while they are counted.
    known: dict[int, tuple[int, int] | None] = {}

    def measure(value: Any, level: int) -> tuple[int, int]:
        """Return how many values and levels ``value`` has, which stands at ``level``."""
        if isinstance(value, int) and value.bit_length() > _MOST_BITS:
            raise ValueError(f"it holds an integer of {value.bit_length():,} bits")
        inner: Iterable[Any] = value
        if isinstance(value, dict):
            inner = chain(dict.keys(value), dict.values(value), _attributes(value))
        elif not isinstance(value, (list, tuple, set, frozenset)):
            return 1, 0
        if id(value) not in known and level < _MOST_LEVELS:
            known[id(value)] = None
            parts = [(1, 0) if type(x) in _LEAVES else measure(x, level + 1) for x in inner]
            deepest = max((levels for _, levels in parts), default=0)
            known[id(value)] = 1 + sum(count for count, _ in parts), 1 + deepest
        found = known.get(id(value), (1, 1))
        if found is None:
            raise ValueError("it contains itself")
        if level + found[1] > _MOST_LEVELS:
            raise ValueError(f"it is nested deeper than {_MOST_LEVELS} levels")
        return found

    count, _ = measure(value, 0)
    if count > num_bytes + _FREE:
        raise ValueError(f"it unfolds to {count:,} values, more than the file has bytes")


def is_file_name(value: Any) -> bool:
    """Return whether ``value`` is a bare file name."""
    return (
        isinstance(value, str)
        and value not in ("", ".", "..")
        and value.isprintable()
        and len(value.encode(errors="replace")) <= _LONGEST_NAME
        and PurePosixPath(value).name == PureWindowsPath(value).name == value
    )


def is_finite(value: Any) -> bool:
    """Return whether ``value`` is a finite number, alone or in a tensor of one element."""
    if hasattr(value, "numel") and not isinstance(value, type):
        if value.numel() != 1 or value.is_complex():
            return False
        value = value.item()
    if isinstance(value, int):
        return not isinstance(value, bool) and value.bit_length() < _BITS_OF_TENSORS
    return isinstance(value, float) and math.isfinite(value)


def is_like(value: Any, own: Any) -> bool:
    """Return whether ``value`` is of the kind of ``own``, so that it can replace it."""
    if own is None or isinstance(own, bool):  # torch's switches may be either
        return value is None or isinstance(value, bool)
    if isinstance(own, (list, tuple)):
        is_list = isinstance(value, (list, tuple)) and len(value) == len(own)
        return is_list and all(map(is_like, value, own))
    if isinstance(own, (int, float)) or hasattr(own, "numel"):
        return is_finite(value)
    return not isinstance(own, (str, dict)) or isinstance(value, (str, dict))


def _attributes(value: dict[Any, Any]) -> list[Any]:
    """Return a state_dict's metadata; drop other attributes, as one may hide a method."""
    if not isinstance(value, OrderedDict):
        return []
    for name in vars(value).keys() - {"_metadata"}:
        del vars(value)[name]
    return list(vars(value).values())
