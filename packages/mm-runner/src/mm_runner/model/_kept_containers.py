"""Lists, dicts and the like in attributes, which the repetition of a forward leaves as they are."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable
from operator import is_
from typing import Any

from ._plain_values import kinds_not_plain

__all__ = ["CONTAINERS", "ConstantContainers", "KeptContainers"]

# Of a subclass, nobody knows how it is copied and filled.
CONTAINERS = frozenset((list, dict, set, OrderedDict, defaultdict, Counter, deque))
_HOLDING = CONTAINERS | {tuple}
# Of that many entries, with those within them, copies cost next to nothing.
_LONG = 1000
# The lengths of that many containers cost next to nothing.
_MOST_WATCHED = 5000
# So do that many short ones, such as counters beside names.
_SHORT, _MOST_FOLLOWED = 64, 16
_ATTEMPTS = 10


class _Structure:
    """What an attribute holds, with all containers in that.

    ``is_plain`` says that there is nothing but numbers, strings and the like in it, at any depth;
    ``has_changed``, that a forward changed something. In one that is constant, ``followed`` are
    the short containers that are kept all the same: itself if it is one, and those directly in it.
    """

    __slots__ = (
        "_lengths",
        "_watched",
        "containers",
        "followed",
        "has_changed",
        "is_plain",
        "num_entries",
        "root",
    )

    def __init__(self, root: Any, *, has_changed: bool = False) -> None:
        self.root = root
        self.is_plain = True
        self.has_changed = has_changed
        self.num_entries = 0
        self.followed: list[Any] = []
        self.containers: list[Any] = []
        self._watched: list[Any] = []
        self._lengths: list[int] = []

    def watch(self) -> None:
        """Note the lengths now: of long ones, of empty ones, which await something, of others."""
        groups: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
        for one in self.containers:
            groups[0 if len(one) > _LONG else 1 if not one else 2].append(one)
        # Most often, the first one is the outermost.
        self._watched = [one for group in (self.containers[:1], *groups) for one in group]
        del self._watched[_MOST_WATCHED:]
        self._lengths = list(map(len, self._watched))
        self.containers = []
        if len(self.root) <= _SHORT:
            inner = self.root.values() if isinstance(self.root, dict) else self.root
            near = [one for one in (self.root, *inner) if type(one) in CONTAINERS]
            self.followed = [one for one in near if len(one) <= _SHORT]
        del self.followed[_MOST_FOLLOWED:]

    def has_lengths(self) -> bool:
        """Return whether all that are watched are as long as they were."""
        return list(map(len, self._watched)) == self._lengths

    def shorten(self) -> None:
        """Take away what was added at the ends of those that are watched."""
        for one, length in zip(self._watched, self._lengths):  # noqa: B905 - of one length
            if not length:
                one.clear()
            elif isinstance(one, list):
                del one[length:]
            while isinstance(one, dict) and len(one) > length:
                one.popitem()


class ConstantContainers:
    """Long structures of numbers and strings, as vocabularies, that a repetition did not change.

    They are not copied again for as long as the containers in them have the same lengths.
    """

    def __init__(self) -> None:
        # By identity of the outermost, with that, so that no other gets its place.
        self._structures: dict[int, _Structure] = {}
        # The outermost of those that have changed once, as statistics do with most batches.
        self._changing: dict[int, Any] = {}

    def __bool__(self) -> bool:
        return bool(self._structures)

    def __reduce__(self) -> tuple[Any, ...]:
        return ConstantContainers, ()  # in a copy, all are others

    def get(self, root: Any) -> _Structure | None:
        """Return what is known of ``root``, or None if it is none of these or has changed."""
        known = self._structures.get(id(root))
        is_same = known is not None and known.root is root and known.has_lengths()
        return known if is_same else None

    def has_changed(self, root: Any) -> bool:
        """Return whether ``root`` is known to change."""
        return self._changing.get(id(root)) is root

    def replace(self, constant: Iterable[_Structure], changing: Iterable[_Structure]) -> None:
        """Know these, and no others: what a module has no more is not kept alive."""
        self._structures = {id(one.root): one for one in constant}
        self._changing = {id(one.root): one.root for one in changing}


class KeptContainers:
    """What containers hold now, with those within them.

    Args:
        containers: Some may be in several places, or in themselves.
        constant: Those that are known not to change, which is brought up to date.
    """

    def __init__(self, containers: list[Any], constant: ConstantContainers) -> None:
        self._known = constant
        self._constant: list[_Structure] = []
        self._others: list[_Structure] = []
        self._copied: list[tuple[Any, Any, _Structure]] = []
        found: dict[int, _Structure] = {}  # what was copied keeps all alive
        for root in {id(one): one for one in containers}.values():
            known = constant.get(root)
            if known is not None:
                self._constant.append(known)
                copies = ((one, _copied(one), known) for one in known.followed)
                self._copied += [copy for copy in copies if copy[1] is not None]
            elif id(root) not in found:
                self._others.append(_Structure(root, has_changed=constant.has_changed(root)))
                self._note(self._others[-1], found)

    def restore(self) -> None:
        """Let them hold again what they held."""
        for container, content, structure in self._copied:
            try:
                is_unchanged = _holds(container, content)
            except RuntimeError:  # another thread changes it, even now
                is_unchanged = False
            if not is_unchanged:
                structure.has_changed = True
                _refill(container, content)
        constant: list[_Structure] = []
        changing: list[_Structure] = []
        for structure in self._constant:
            if not structure.has_lengths():
                structure.shorten()
                structure.has_changed = True
            (changing if structure.has_changed else constant).append(structure)
        for structure in self._others:
            if structure.is_plain and structure.num_entries > _LONG:
                structure.watch()
                (changing if structure.has_changed else constant).append(structure)
        self._known.replace(constant, changing)

    def _note(self, structure: _Structure, found: dict[int, _Structure]) -> None:
        todo = [structure.root]
        while todo:
            one = todo.pop()
            if id(one) in found:
                # Next time, what has it in common with this one may be known.
                structure.is_plain &= found[id(one)] is structure
                continue
            found[id(one)] = structure
            content = one
            if type(one) is not tuple:
                content = _copied(one)
                if content is None:
                    structure.is_plain = False
                    continue
                self._copied.append((one, content, structure))
                structure.containers.append(one)
            structure.num_entries += len(content)
            values = content.values() if isinstance(content, dict) else content
            kinds = kinds_not_plain(values)
            # A queue that is full changes at one length.
            if type(one) is deque or not kinds <= _HOLDING:
                structure.is_plain = False
            if not kinds.isdisjoint(_HOLDING):
                todo += [value for value in values if type(value) in _HOLDING]


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
