"""Values that cannot be changed themselves: numbers, strings, None and the like."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from enum import Enum
from typing import Any

import torch

__all__ = ["PLAIN", "PlainTuples", "is_plain_kind", "kinds_not_plain"]


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


class PlainTuples:
    """Tuples of what is plain, and of such tuples, as those of a vocabulary.

    None is looked through a second time. One that the module has no more is kept alive until the
    forward after the next one.
    """

    def __init__(self) -> None:
        # By identity, with the tuple, so that no other gets its place.
        self._known: dict[int, Any] = {}
        self._of_last_forward: dict[int, Any] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return PlainTuples, ()  # in a copy, all are others

    def begin_forward(self) -> None:
        """Forget those that nobody asked for since the last forward began."""
        self._known, self._of_last_forward = {}, self._known

    def __contains__(self, value: Any) -> bool:
        key = id(value)
        if type(value) is not tuple:
            return False
        if self._known.get(key) is not value:
            if self._of_last_forward.get(key) is not value and not _is_plain(value):
                return False
            self._known[key] = value
        return True


def _is_plain(value: tuple[Any, ...]) -> bool:
    seen: set[int] = set()  # of a tree, a tuple may be in many places
    todo: list[Any] = [value]
    while todo:
        one = todo.pop()
        if id(one) not in seen:
            seen.add(id(one))
            kinds = kinds_not_plain(one)
            if kinds:
                if kinds != {tuple}:
                    return False
                todo += [entry for entry in one if type(entry) is tuple]
    return True
