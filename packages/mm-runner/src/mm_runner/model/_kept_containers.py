"""Lists, dicts and the like in attributes, which the repetition of a forward leaves as they are."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Collection, Iterable
from operator import is_
from typing import Any

from ._plain_values import PLAIN

__all__ = ["CONTAINERS", "ConstantContainers", "KeptContainers"]

# Of a subclass, nobody knows how it is copied and filled.
CONTAINERS = frozenset((list, dict, set, OrderedDict, defaultdict, Counter, deque))
_HOLDING = CONTAINERS | {tuple}
# Of that many entries, a copy costs next to nothing.
_LONG = 1000


class ConstantContainers:
    """Long containers of numbers and strings, as vocabularies, that a repetition did not change.

    Neither they nor what is in them is copied again for as long as their lengths stay the same.
    """

    def __init__(self) -> None:
        # By identity, with the container, so that no other gets its place.
        self._lengths: dict[int, tuple[Any, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._lengths)

    def length_of(self, container: Any) -> int | None:
        """Return how long ``container`` is, or None if it is none of these or has changed."""
        known, length = self._lengths.get(id(container), (None, 0))
        return length if known is container and len(container) == length else None

    def replace(self, containers: Iterable[Any]) -> None:
        """Know these, and no others: what a module has no more is not kept alive."""
        self._lengths = {id(one): (one, len(one)) for one in containers}


class KeptContainers:
    """What containers hold now, with those within them.

    Args:
        containers: Some may be in several places, or in themselves.
        constant: Those that are known not to change, which is brought up to date.
    """

    def __init__(self, containers: list[Any], constant: ConstantContainers) -> None:
        self._known = constant
        self._copied: list[tuple[Any, Any]] = []
        self._constant: list[tuple[Any, int]] = []
        seen: set[int] = set()  # all are alive until they have been seen
        todo = containers
        while todo:
            one = todo.pop()
            if id(one) not in seen:
                seen.add(id(one))
                todo += self._note(one)

    def restore(self) -> None:
        """Let them hold again what they held."""
        constant = []
        for container, length in self._constant:
            if len(container) == length:
                constant.append(container)
            else:
                _shorten(container, length)
        unchanged = {id(one): one for one in constant}
        for container, content in self._copied:
            if _holds(container, content):
                unchanged[id(container)] = container
            else:
                _refill(container, content)
        known = set(map(id, constant))
        constant += [
            one
            for key, one in unchanged.items()
            if len(one) > _LONG and key not in known and _is_constant(one, unchanged, known)
        ]
        self._known.replace(constant)

    def _note(self, one: Any) -> list[Any]:
        """Note what is in ``one``, and return the containers among that."""
        if type(one) is not tuple:
            length = self._known.length_of(one)
            if length is not None:
                self._constant.append((one, length))
                return []
            self._copied.append((one, one.copy()))
        values = one.values() if isinstance(one, dict) else one
        return [value for value in values if type(value) in _HOLDING]


def _holds(container: Any, content: Any) -> bool:
    if len(container) != len(content):
        return False
    if type(container) is set:  # a copy may have another order
        return bool(container == content)
    if isinstance(container, dict) and not all(map(is_, container.values(), content.values())):
        return False
    return all(map(is_, container, content))


def _refill(container: Any, content: Any) -> None:
    container.clear()
    (container.extend if hasattr(container, "extend") else container.update)(content)


def _is_constant(container: Any, unchanged: Collection[int], known: Collection[int]) -> bool:
    """Return whether nothing but numbers, strings and the like is in ``container`` at any depth."""
    seen = set(known)
    todo = [container]
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        # What is empty waits for something, and a queue that is full changes at one length.
        is_certain = bool(one) and type(one) is not deque and id(one) in unchanged
        if not (is_certain or type(one) is tuple):
            return False
        values = one.values() if isinstance(one, dict) else one
        others = [value for value in values if type(value) not in PLAIN]
        if not _HOLDING.issuperset(map(type, others)):
            return False
        todo += others
    return True


def _shorten(container: Any, length: int) -> None:
    """Take away what was added at the end."""
    if isinstance(container, list):
        del container[length:]
    while isinstance(container, dict) and len(container) > length:
        container.popitem()
