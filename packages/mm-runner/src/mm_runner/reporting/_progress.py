"""How long a training still takes, and what its progress bar says."""

from __future__ import annotations

import time
from datetime import timedelta

__all__ = ["TrainingClock", "as_clock"]

_LONGEST_S = timedelta.max.total_seconds() - 1


class TrainingClock:
    """Reckons how long the steps that are left will take, from those of this run.

    Validations do not count: neither as time of the steps done, nor as time that is left.

    Args:
        done: Steps that were done before this run.
    """

    def __init__(self, done: int = 0) -> None:
        self._first = done
        self._left_out_s = 0.0
        self._began_s = time.perf_counter()
        self._paused_s: float | None = None

    def pause(self) -> None:
        """Stop counting: a validation begins."""
        self._paused_s = time.perf_counter()

    def go_on(self) -> None:
        """Count again; does nothing unless it was paused."""
        if self._paused_s is not None:
            self._left_out_s += time.perf_counter() - self._paused_s
            self._paused_s = None

    def step_s(self, done: int) -> float:
        """Return seconds per step up to now, when ``done`` steps of the run are done."""
        now = time.perf_counter() if self._paused_s is None else self._paused_s
        return (now - self._began_s - self._left_out_s) / max(done - self._first, 1)

    def eta_s(self, done: int, total: int) -> float:
        """Return the seconds that the rest of ``total`` steps takes."""
        # A run resumed on other data or processes may have done more steps than it would do now.
        return self.step_s(done) * max(total - done, 0)


def as_clock(seconds: float) -> str:
    """Return a duration as ``h:mm:ss``, with days before it where there are some."""
    # Of a run that is to go on "for ever" it is more than Python's dates hold.
    return str(timedelta(seconds=int(min(seconds, _LONGEST_S))))
