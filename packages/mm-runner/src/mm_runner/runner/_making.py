"""What the run knows of a part that a method of the Runner is building for it.

MMEngine's ``build_dataloader`` and ``build_evaluator`` take a config and little else, and a
subclass that overrides one calls the Runner's with just that. What else a run's own part depends on
reaches it from here.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mm_runner.data import DataSettings

__all__ = ["PartOfRun", "making", "part_of_run"]


class PartOfRun:
    """A part of a run.

    Args:
        where: Path of its config.
        settings: What a loader needs to know of the run; an evaluator needs none.
        shuffle: What the default sampler of a loader does.

    Attributes:
        made: What the Runner's own method has returned.
    """

    def __init__(
        self, where: str, settings: DataSettings | None = None, *, shuffle: bool = False
    ) -> None:
        self.where, self.settings, self.shuffle = where, settings, shuffle
        self.made: list[Any] = []


_part: ContextVar[PartOfRun | None] = ContextVar("mm_runner_part_of_run", default=None)


@contextmanager
def making(part: PartOfRun | None) -> Iterator[None]:
    """Let :func:`part_of_run` return ``part`` within the block."""
    token = _part.set(part)
    try:
        yield
    finally:
        _part.reset(token)


def part_of_run() -> PartOfRun | None:
    """Return which part of a run is being built; ``None`` if a script builds one of its own."""
    return _part.get()
