"""Which parts of a training were assigned to the Runner, and for which training."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from mm_runner.errors import RunStopped

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["AssignedParts"]


class _Part(NamedTuple):
    value: Any
    place: tuple[int, int] | None = None  # where a loop stood as it was first used
    is_used: bool = False


class AssignedParts:
    """Keeps what was assigned until a training that used it has ended well.

    What hooks assign while a training begins is kept apart: if that fails, the next one is built
    as this was, and only then gets what its hooks have not assigned again. What the Runner's own
    methods assign while they build counts only as long as they do.

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
        self._of_build: dict[str, _Part] = {}
        self._is_building = False
        # What hooks had assigned as the first step began.
        self._of_before_run: dict[str, _Part] | None = None

    def __contains__(self, name: str) -> bool:
        return self._part(name) is not None

    @property
    def is_training(self) -> bool:
        """Whether a training is under way."""
        return self._noting is self._of_hooks

    def note(self, name: str, value: Any) -> None:
        """Note that ``name`` was assigned."""
        if self._is_building:
            self._of_build[name] = _Part(value)
        else:
            self.keep(name, value)

    def keep(self, name: str, value: Any) -> None:
        """Note it for the next training as well, should this one fail, also while building."""
        self._noting[name] = _Part(value)
        if self._noting is self._of_script:
            self._of_failed.pop(name, None)

    def forget(self, name: str) -> None:
        """Let ``name`` be as if it had not been assigned."""
        if self._is_building:
            self._of_build.pop(name, None)
        else:
            self.forget_kept(name)

    def forget_kept(self, name: str) -> None:
        """Let go of what :meth:`keep` has noted, also while building."""
        for parts in (self._of_hooks, self._of_script, self._of_failed):
            parts.pop(name, None)

    @contextmanager
    def unless_it_fails(self) -> Iterator[None]:
        """Note what is assigned in the block, unless that raises."""
        noting = self._of_build if self._is_building else self._noting
        before = dict(noting)
        try:
            yield
        except BaseException:
            noting.clear()
            noting.update(before)
            raise

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
        """Return the epoch and the step that a loop stood at when it was first asked for here."""
        for parts in self._by_rank():
            part = parts.get(name)
            if part is not None:
                now = getattr(part.value, "epoch", 0), getattr(part.value, "iter", 0)
                place = now if part.place is None else part.place
                parts[name] = part._replace(place=place)
                return place
        return 0, 0

    def is_used(self, name: str) -> bool:
        """Tell whether it has taken steps in a training that failed."""
        part = self._part(name)
        return part is not None and part.is_used

    def from_hooks(self) -> frozenset[str]:
        """Return the names of what hooks have assigned as this training began, or a failed one."""
        self._of_hooks.update({**self._of_failed, **self._of_hooks})
        return frozenset(self._of_hooks)

    @contextmanager
    def building(self) -> Iterator[None]:
        """Build the Runner's parts in the block, by methods that may assign them."""
        self._is_building = True
        try:
            yield
        finally:
            self._is_building = False
            self._of_build.clear()

    @contextmanager
    def training(self, runner: Any) -> Iterator[None]:
        """Train within the block; if it ends well, what was assigned for it is forgotten."""
        self._noting, self._of_before_run = self._of_hooks, None
        first = runner.iter
        try:
            yield
        except BaseException as error:
            goes_on = isinstance(error, RunStopped) and runner.interruption.saved is not None
            # What was assigned amid the steps is not for the first one of the next training.
            kept = self._of_hooks if goes_on else self._of_before_steps(self._of_hooks)
            for parts in (self._of_script, kept) if runner.iter > first else ():
                parts.update({name: part._replace(is_used=True) for name, part in parts.items()})
            self._of_failed.update(kept)
            raise
        else:
            self._of_script, self._of_failed = {}, {}
        finally:
            self._of_hooks, self._noting = {}, self._of_script
            self.is_ending = False

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Use them within the block."""
        self.are_settled, self._of_before_run = True, dict(self._of_hooks)
        try:
            yield
        finally:
            self.are_settled = False
        self.is_ending = True

    def _part(self, name: str) -> _Part | None:
        return next((parts[name] for parts in self._by_rank() if name in parts), None)

    def _of_before_steps(self, of_hooks: dict[str, _Part]) -> dict[str, _Part]:
        return of_hooks if self._of_before_run is None else self._of_before_run

    def _by_rank(self) -> tuple[dict[str, _Part], ...]:
        return self._of_build, self._of_hooks, self._of_script
