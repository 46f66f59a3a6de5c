"""Values that cannot be changed themselves: numbers, strings, None and the like."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from enum import Enum
from itertools import chain
from typing import Any

import torch

__all__ = ["PLAIN", "is_plain", "is_plain_kind", "kinds_not_plain"]


def _numbers_of_numpy() -> set[type]:
    numpy: Any = sys.modules.get("numpy")  # torch has imported it, if there is one
    if numpy is None:
        return set()
    number = (numpy.number, numpy.bool_)
    return {kind for kind in numpy.sctypeDict.values() if issubclass(kind, number)}


# Nor does any keep memory of a device.
PLAIN = frozenset((
    *(type(None), bool, int, float, complex, str, bytes),
    *(torch.device, torch.dtype, torch.Size),
    *_numbers_of_numpy(),
))  # fmt: skip


def is_plain_kind(kind: type) -> bool:
    """Return whether values of the type ``kind`` are plain, as members of an Enum are, too."""
    return kind in PLAIN or issubclass(kind, Enum)


def kinds_not_plain(values: Iterable[Any]) -> set[type]:
    """Return the types of those in ``values`` that are not plain themselves."""
    kinds = set(map(type, values)) - PLAIN
    return {kind for kind in kinds if not issubclass(kind, Enum)} if kinds else kinds


def is_plain(value: Any) -> bool:
    """Return whether ``value`` is plain, or a tuple of what is, and of such tuples."""
    if type(value) is not tuple:
        return is_plain_kind(type(value))
    level = [value]
    while kinds := kinds_not_plain(chain.from_iterable(level)):
        if kinds != {tuple}:
            return False
        inner = (one for one in chain.from_iterable(level) if type(one) is tuple)
        level = list({id(one): one for one in inner}.values())  # of a tree, one may be there often
    return True
