"""Values that cannot be changed themselves: numbers, strings, None and the like."""

from __future__ import annotations

import sys
from typing import Any

import torch

__all__ = ["PLAIN", "is_plain"]


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


def is_plain(value: Any) -> bool:
    """Return whether ``value`` is plain, or a tuple of what is."""
    kind = type(value)
    return kind in PLAIN or (kind is tuple and PLAIN.issuperset(map(type, value)))
