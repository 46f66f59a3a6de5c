"""Which parts of a training were assigned to the Runner, and for which training."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["AssignedParts"]


class _Part(NamedTuple):
    value: Any
    place: tuple[int, int]  # where a loop stood then
    is_used: bool = False


class AssignedParts:
    """Keeps what was assigned until a training that used it has ended well.

    What hooks assign while a training begins is kept apart: if that fails, the next one is built
    as this was, and only then gets what its hooks have not assigned again.

    Attributes:
        are_settled: Whether a training is under way with its parts; from behind ``before_run`` on.
        is_ending: Whether it has trained: what is assigned now is for the next.
    """

    def __init__(self) -> None:
        self.are_settled = self.is_ending = False
        self._of_script: dict[str, _Part] = {}
        self._of_hooks: dict[str, _Part] = {}
        self._of_failed: dict[str, _Part] = {}
        self._of_next: dict[str, Any] = {}
        self._noting = self._of_script

    def __contains__(self, name: str) -> bool:
        return name in self._of_hooks or name in self._of_script

    @property
    def is_training(self) -> bool:
        """Whether a training is under way."""
        return self._noting is self._of_hooks

    def note(self, name: str, value: Any) -> None:
        """Note that ``name`` was assigned."""
        place = getattr(value, "epoch", 0), getattr(value, "iter", 0)
        self._noting[name] = _Part(value, place)
        if self._noting is self._of_script:
            self._of_failed.pop(name, None)

    def forget(self, name: str) -> None:
        """Let ``name`` be as if it had not been assigned."""
        for parts in (self._of_hooks, self._of_script, self._of_failed):
            parts.pop(name, None)

    def defer(self, name: str, value: Any) -> None:
        """Keep what was assigned as a training ends."""
        self._of_next[name] = value

    def take_deferred(self) -> dict[str, Any]:
        """Return what was kept so; it is to be assigned now."""
        deferred, self._of_next = self._of_next, {}
        return deferred

    def get(self, name: str) -> Any:
        """Return what was assigned, ``None`` if nothing was."""
        part = self._part(name)
        return None if part is None else part.value

    def place(self, name: str) -> tuple[int, int]:
        """Return the epoch and the step that a loop stood at when it was assigned."""
        part = self._part(name)
        return (0, 0) if part is None else part.place

    def is_used(self, name: str) -> bool:
        """Tell whether it has taken steps in a training that failed."""
        part = self._part(name)
        return part is not None and part.is_used

    def from_hooks(self) -> frozenset[str]:
        """Return the names of what hooks have assigned as this training began, or a failed one."""
        self._of_hooks.update({**self._of_failed, **self._of_hooks})
        return frozenset(self._of_hooks)

    @contextmanager
    def training(self, runner: Any) -> Iterator[None]:
        """Train within the block; if it ends well, what was assigned for it is forgotten."""
        self._noting = self._of_hooks
        first = runner.iter
        try:
            yield
        except BaseException:
            for parts in (self._of_script, self._of_hooks) if runner.iter > first else ():
                parts.update({name: part._replace(is_used=True) for name, part in parts.items()})
            self._of_failed.update(self._of_hooks)
            raise
        else:
            self._of_script, self._of_failed = {}, {}
        finally:
            self._of_hooks, self._noting = {}, self._of_script
            self.is_ending = False

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Use them within the block."""
        self.are_settled = True
        try:
            yield
        finally:
            self.are_settled = False
        self.is_ending = True

    def _part(self, name: str) -> _Part | None:
        return self._of_hooks.get(name) or self._of_script.get(name)
