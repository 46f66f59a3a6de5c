"""Duration of training steps, read without waiting for the device."""

from collections import deque
from dataclasses import dataclass, field
from itertools import chain
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import nn

# Steps after a change that are not typical: kernels are chosen, buckets and optimizer states made.
SETTLING_STEPS = 2
_MAX_SAMPLES = 64


class Clock:
    """The host's clock for models on the CPU, device events for others.

    The host runs ahead of a device, so its clock says little about a step there. An event costs
    some microseconds and blocks nobody.

    Args:
        module: The model; the device is that of its first parameter or buffer.
    """

    def __init__(self, module: nn.Module) -> None:
        tensor = next(chain(module.parameters(), module.buffers()), None)
        kind = "cpu" if tensor is None else tensor.device.type
        self._event = None if kind == "cpu" else getattr(getattr(torch, kind, None), "Event", None)
        self.name = "host clock" if self._event is None else "device events"

    def mark(self) -> Any:
        """Return this moment; on a device, when it will have finished the work queued so far."""
        if self._event is None:
            return perf_counter()
        event = self._event(enable_timing=True)
        event.record()
        return event

    def seconds_between(self, start: Any, end: Any) -> float | None:
        """Return the time between two marks; None while the device has not reached the second."""
        if self._event is None:
            return float(end - start)
        return float(start.elapsed_time(end)) / 1e3 if end.query() else None


@dataclass
class StageTimes:
    """Durations of steps between two changes of what is compiled.

    Attributes:
        steady: The latest ordinary steps, in seconds.
        starting: Steps that compiled something, and those that settled after them.
    """

    steady: deque[float] = field(default_factory=lambda: deque(maxlen=_MAX_SAMPLES))
    starting: list[float] = field(default_factory=list)

    @property
    def step_s(self) -> float | None:
        """Seconds of an ordinary step; None before there was one."""
        # Some steps wait for data, save a checkpoint or are interrupted.
        from statistics import median  # noqa: PLC0415 - imports decimal and fractions

        return median(self.steady) if self.steady else None

    @property
    def startup_s(self) -> float:
        """Seconds that the starting steps took beyond ordinary ones."""
        return sum(max(0.0, seconds - (self.step_s or 0.0)) for seconds in self.starting)


class _Interval(NamedTuple):
    stage: int
    start: Any
    end: Any
    has_compiled: bool
    has_fallen_back: bool
    is_disturbed: bool


class StepTimer:
    """Times training steps, each from its beginning to that of the next.

    Args:
        clock: The clock.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._stages: dict[int, StageTimes] = {}
        self._pending: deque[_Interval] = deque()
        self._open: tuple[int, Any] | None = None
        self._num_graphs = self._num_fallbacks = 0
        self._is_disturbed = False
        self._settled_stage = -1
        self._num_settling = 0

    def of_stage(self, stage: int) -> StageTimes:
        """Return the times of a stage."""
        return self._stages.setdefault(stage, StageTimes())

    def disturb(self) -> None:
        """Leave the running step out: it does more than an ordinary one."""
        self._is_disturbed = True

    def begin(self, stage: int, num_graphs: int, num_fallbacks: int) -> None:
        """Note that a training step begins.

        Args:
            stage: A number for what is compiled in it.
            num_graphs: Graphs captured so far.
            num_fallbacks: Regions that fell back so far.
        """
        now = self.clock.mark()
        if self._open is not None:
            changes = (num_graphs != self._num_graphs, num_fallbacks != self._num_fallbacks)
            self._pending.append(_Interval(*self._open, now, *changes, self._is_disturbed))
        self._open = (stage, now)
        self._num_graphs, self._num_fallbacks = num_graphs, num_fallbacks
        self._is_disturbed = False
        while self._pending:
            seconds = self.clock.seconds_between(self._pending[0].start, self._pending[0].end)
            if seconds is None:
                return
            self._add(self._pending.popleft(), seconds)

    def _add(self, interval: _Interval, seconds: float) -> None:
        stage, times = interval.stage, self.of_stage(interval.stage)
        if interval.has_fallen_back:  # less is compiled from now on
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
