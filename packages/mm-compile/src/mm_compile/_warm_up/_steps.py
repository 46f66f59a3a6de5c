"""How long training steps take, told apart by what of the model was compiled meanwhile."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

from ._clock import DeviceClock, HostClock

# Steps after a change that are no measure of those to come: kernels are chosen, buckets and
# optimizer states made, device graphs recorded.
SETTLING_STEPS = 2
_MAX_SAMPLES = 64


@dataclass
class StageTimes:
    """Durations of steps between two changes of what is compiled.

    Attributes:
        steady: Of ordinary steps, in seconds; the latest ones.
        starting: Of those that compiled something, and of the settling ones after them.
    """

    steady: deque[float] = field(default_factory=lambda: deque(maxlen=_MAX_SAMPLES))
    starting: list[float] = field(default_factory=list)

    @property
    def step_seconds(self) -> float | None:
        """The time of an ordinary step; None before there was one."""
        # A median: some steps wait for data, write a checkpoint or are interrupted.
        return median(self.steady) if self.steady else None

    @property
    def startup_seconds(self) -> float:
        """What the starting steps took beyond ordinary ones."""
        step = self.step_seconds or 0.0
        return sum(max(0.0, seconds - step) for seconds in self.starting)


class _Interval(NamedTuple):
    stage: int
    start: Any
    end: Any
    has_compiled: bool
    has_fallen_back: bool
    is_disturbed: bool


class StepTimer:
    """Times the training steps of a model, each from the beginning of one to that of the next.

    So backward, optimizer and data loading are part of a step: what a run consists of.

    Args:
        clock: Where the time is read.
        count_graphs: Returns the graphs captured so far.
        count_fallbacks: Returns how many regions run eagerly though they were to be compiled.

    Attributes:
        num_fallbacks: How many did so when the running step began.
    """

    def __init__(
        self,
        clock: HostClock | DeviceClock,
        count_graphs: Callable[[], int],
        count_fallbacks: Callable[[], int] = lambda: 0,
    ) -> None:
        self.clock = clock
        self._count_graphs = count_graphs
        self._count_fallbacks = count_fallbacks
        self.num_fallbacks = 0
        self._stages: dict[int, StageTimes] = {}
        self._pending: deque[_Interval] = deque()
        self._open: tuple[int, Any] | None = None
        self._num_graphs = 0
        self._is_disturbed = False
        self._settled_stage = -1
        self._num_settling = 0

    def of_stage(self, stage: int) -> StageTimes:
        """Return what is known of a stage."""
        return self._stages.setdefault(stage, StageTimes())

    def disturb(self) -> None:
        """Leave the running step out: it does more than an ordinary one."""
        self._is_disturbed = True

    def begin(self, stage: int) -> None:
        """Note that a training step begins, and read the clock for those that are over."""
        now, num_graphs = self.clock.mark(), self._count_graphs()
        num_fallbacks = self._count_fallbacks()
        if self._open is not None:
            changes = (num_graphs != self._num_graphs, num_fallbacks != self.num_fallbacks)
            self._pending.append(_Interval(*self._open, now, *changes, self._is_disturbed))
        self._open = (stage, now)
        self._num_graphs, self.num_fallbacks = num_graphs, num_fallbacks
        self._is_disturbed = False
        self._collect()

    def _collect(self) -> None:
        while self._pending:
            interval = self._pending[0]
            seconds = self.clock.seconds_between(interval.start, interval.end)
            if seconds is None:
                return
            self._pending.popleft()
            self._add(interval, seconds)

    def _add(self, interval: _Interval, seconds: float) -> None:
        stage, times = interval.stage, self.of_stage(interval.stage)
        if interval.has_fallen_back:
            # Less is compiled in the steps to come than was in those before.
            times.steady.clear()
            self._settled_stage = -1
        if interval.is_disturbed:
            return
        if interval.has_compiled or stage != self._settled_stage:
            self._settled_stage = stage
            self._num_settling = SETTLING_STEPS + interval.has_compiled
        if self._num_settling > 0:
            self._num_settling -= 1
            times.starting.append(seconds)
        else:
            times.steady.append(seconds)


def in_words(seconds: float) -> str:
    """Write a duration for people: ``"12.3 ms"``, ``"4.2 s"``."""
    return f"{seconds * 1e3:.3g} ms" if abs(seconds) < 1 else f"{seconds:.3g} s"
