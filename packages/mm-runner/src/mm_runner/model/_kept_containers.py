"""Lists, dicts and the like in attributes, which the repetition of a forward leaves as they are."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from operator import is_
from typing import Any

from ._plain_values import kinds_not_plain

__all__ = ["CONTAINERS", "KeptContainers"]

# Of a subclass, nobody knows how it is copied and filled.
CONTAINERS = frozenset((list, dict, set, OrderedDict, defaultdict, Counter, deque))
_HOLDING = CONTAINERS | {tuple}
_ATTEMPTS = 10


class KeptContainers:
    """What containers hold now, with those within them.

    Args:
        containers: Some may be in several places, or in themselves; tuples, for what is in them.
    """

    def __init__(self, containers: list[Any]) -> None:
        self._copied: list[tuple[Any, Any]] = []
        found: dict[int, Any] = {}  # by identity, with each, so that no other gets its place
        todo = containers.copy()
        while todo:
            one = todo.pop()
            if id(one) in found:
                continue
            found[id(one)] = one
            content = one
            if type(one) is not tuple:
                content = _copied(one)
                if content is None:
                    continue
                self._copied.append((one, content))
            values = content.values() if isinstance(content, dict) else content
            # Most often, these are few types of very many entries.
            if not kinds_not_plain(values).isdisjoint(_HOLDING):
                todo += [value for value in values if type(value) in _HOLDING]

    def restore(self) -> None:
        """Let them hold again what they held."""
        for container, content in self._copied:
            try:
                is_unchanged = _holds(container, content)
            except RuntimeError:  # another thread changes it, even now
                is_unchanged = False
            if not is_unchanged:
                _refill(container, content)


def _copied(container: Any) -> Any:
    """Return a copy, or None if another thread changes ``container`` all the time."""
    for _ in range(_ATTEMPTS):
        try:
            return container.copy()
        except RuntimeError:
            continue
    return None


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
