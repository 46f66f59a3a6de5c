"""The first training steps: timing, and ``"auto"``, which compiles if that pays.

No step runs twice: the eager steps that are timed are training steps like the others.
"""

import json
import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from statistics import median_high
from time import perf_counter
from typing import Any
from weakref import ref

import torch
import torch.distributed as dist
from torch import nn

from ._config import CompileConfig
from ._model_call import ModelCall
from ._region import Region
from ._report import StepTimes
from ._torch_private import default_store
from ._words import counted, duration

_logger = logging.getLogger(__name__)

_NUM_SAMPLES = 8
_MAX_SAMPLES = 64
# Steps after a change that are not typical: kernels are chosen, buckets and optimizer states made.
_SETTLING_STEPS = 2
# What "auto" expects before it compiles: inductor takes 30 s for a group of equal regions, and
# saves a tenth of a step. Savings must be twice the cost, so that a run hardly ever loses.
_EXPECTED_COST_S = 30.0
_EXPECTED_GAIN = 0.1
_MARGIN = 2.0
# A smaller gain is noise.
_LEAST_GAIN = 0.01
_EAGER, _COMPILED, _REFUSED = range(3)
# Number of models of a class that "auto" has begun with: the ranks find each other's decisions.
_num_models: Counter[str] = Counter()

# The stage of all steps from a number on, and what "auto" decided.
Decision = tuple[int, int, str | None]


class _HostEvent:
    """The host's clock, with the interface of a device's event."""

    def record(self) -> None:
        self.at = perf_counter()

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: "_HostEvent") -> float:
        return (end.at - self.at) * 1e3


class WarmUp:
    """Times training steps, and decides which stage they run in: eager or compiled.

    With ``"auto"``, the first steps run eagerly, and rank 0 decides for all ranks; otherwise all
    are compiled. Afterwards nothing of this is left in a step.
    """

    def __init__(
        self,
        model: nn.Module,
        regions: Sequence[Region],
        config: CompileConfig,
        model_call: ModelCall,
    ) -> None:
        self._model = ref(model)
        self._regions = regions
        self._config = config
        self._model_call = model_call
        self._num_steps = self._num_decisions = 0
        self._num_expected: int | None = None
        self._planned: Decision | None = None
        name = type(model).__name__
        _num_models[name] += config.auto
        self._key = f"mm_compile/auto/{name}/{_num_models[name]}"
        # Chosen when training begins: the model may move to its device before. The host runs ahead
        # of a device, so its clock says little about a step there.
        self._event: Any = None
        # Seconds of ordinary steps, by stage, and intervals that the device has not finished.
        self._seconds: list[deque[float]] = [deque(maxlen=_MAX_SAMPLES) for _ in range(3)]
        self._pending: deque[tuple[deque[float], Any, Any]] = deque()
        self._began: Any = None
        self._counts = (0, 0)
        self._is_disturbed = False
        self._num_settling = _SETTLING_STEPS
        self.message: str | None = None
        self.is_done = False
        self.on_done: Callable[[], None] = lambda: None
        self._stage = _EAGER if config.auto else _COMPILED
        self._hold_back("auto: it is not decided yet" if config.auto else None)
        model_call.on_begin.append(self._begin_call)

    def expect(self, num_steps: int) -> None:
        """Set the number of training steps to come."""
        self._num_expected = self._num_steps + num_steps

    def step_times(self, compile_seconds: float) -> StepTimes | None:
        """Return the duration of eager and compiled steps; None while no region is compiled."""
        has_fallen_back = self._count_fallbacks() != self._counts[1]
        is_eager = all(each.fallback or each.held_back for each in self._regions)
        if is_eager or has_fallen_back or not self._seconds[_COMPILED]:
            return None
        # Medians: some steps wait for data, save a checkpoint or are interrupted.
        eager = self._seconds[_EAGER]
        return StepTimes(
            compiled_s=median_high(self._seconds[_COMPILED]),
            eager_s=median_high(eager) if eager else None,
            startup_s=compile_seconds,
            clock="host clock" if self._event is _HostEvent else "device events",
        )

    def stop(self) -> None:
        """Leave the model as it is now."""
        with suppress(ValueError):
            self._model_call.on_begin.remove(self._begin_call)

    def _begin_call(self) -> None:
        model = self._model()
        if model is None or not model.training:
            self._is_disturbed = True
            return
        if self._event is None:
            tensor = next(chain(model.parameters(), model.buffers()), torch.empty(0))
            device = None if tensor.is_cpu else getattr(torch, tensor.device.type, None)
            kind = getattr(device, "Event", None)
            self._event = partial(kind, enable_timing=True) if kind else _HostEvent
        self._num_steps += 1
        self._time_step()
        if self._planned is None and not self.is_done:
            self._planned = self._decide()
        if self._planned is not None and self._num_steps >= self._planned[0]:
            _, stage, message = self._planned
            self._planned = None
            self._enter(stage, message)

    def _time_step(self) -> None:
        """Time the step that ends now, and begin the next one."""
        now = self._event()
        now.record()
        counts = (sum(each.kind.count_graphs() for each in self._regions), self._count_fallbacks())
        has_compiled, has_fallen_back = map(int.__ne__, counts, self._counts)
        if has_fallen_back:  # less is compiled from now on
            self._seconds[self._stage] = deque(maxlen=_MAX_SAMPLES)
        if has_compiled or has_fallen_back:
            self._num_settling = _SETTLING_STEPS + has_compiled
        if self._began is not None and not self._is_disturbed:
            if self._num_settling <= 0:
                self._pending.append((self._seconds[self._stage], self._began, now))
            self._num_settling -= 1
        self._began, self._counts = now, counts
        is_verified = any(region.check is not None for region in self._regions)
        self._is_disturbed = is_verified and self._stage == _COMPILED
        while self._pending and self._pending[0][2].query():  # without waiting for the device
            seconds, start, end = self._pending.popleft()
            seconds.append(start.elapsed_time(end) / 1e3)

    def _decide(self) -> Decision | None:
        is_timed = len(self._seconds[self._stage]) >= _NUM_SAMPLES
        if not self._config.auto:
            if is_timed:
                self._finish()
            return None
        # Ranks exchange messages in every step at first, when code is compiled, then seldom.
        interval = 1 if self._num_steps < _MAX_SAMPLES else 16
        if self._num_steps % interval:
            return None
        store, key = default_store(), f"{self._key}/{self._num_decisions}"
        if store is not None and dist.get_rank() != 0:
            if store.add(f"{key}/count", 0) == 0:
                return None
            since, stage, message = json.loads(store.get(key))
        else:
            stage, message = self._weigh(is_timed=is_timed)
            if stage is None:
                return None
            # The other ranks read it before that step.
            since = self._num_steps + interval
            if store is not None:
                store.set(key, json.dumps((since, stage, message)))
                store.add(f"{key}/count", 1)
        self._num_decisions += 1
        return since, stage, message

    def _weigh(self, *, is_timed: bool) -> tuple[int | None, str | None]:
        """Return the next stage, None for the present one, and what is decided finally."""
        after = f"auto, after {counted(self._num_steps, 'step')}"
        fallbacks = [region.fallback for region in self._regions]
        if all(fallbacks):
            return _REFUSED, f"{after}: not compiled: what was tried runs eagerly: {fallbacks[0]}"
        if not is_timed:
            return None, None
        eager = median_high(self._seconds[_EAGER])
        if self._stage == _EAGER:
            # Without a word, as many steps are to come as there have been.
            num_left = self._num_steps
            if self._num_expected is not None:
                num_left = max(0, self._num_expected - self._num_steps)
            cost = _EXPECTED_COST_S * len({id(region.kind) for region in self._regions})
            gain = _EXPECTED_GAIN * eager * num_left
            if gain > _MARGIN * cost:
                return _COMPILED, None
            return None if self._num_expected is None else _REFUSED, (
                f"{after}: not compiled: {num_left} steps of {duration(eager)} are left; "
                f"compiling is expected to take {cost:.0f} s and to save {gain:.0f} s, which is "
                "too little for the risk"
            )
        compiled = median_high(self._seconds[_COMPILED])
        if eager - compiled < _LEAST_GAIN * eager:
            return _REFUSED, (
                f"{after}: not compiled: a step takes {duration(eager)} eager and "
                f"{duration(compiled)} compiled"
            )
        saved = duration(eager - compiled)
        regions = counted(len(self._regions), "region")
        return _COMPILED, f"{after}: {regions} compiled: saves {saved} of each step"

    def _enter(self, stage: int, message: str | None) -> None:
        if stage != self._stage:
            self._stage, self._num_settling = stage, _SETTLING_STEPS
            self._hold_back(message)
        if message is not None:
            self.message = message
            if stage == _REFUSED and (default_store() is None or dist.get_rank() == 0):
                _logger.warning("compile: %s.", message)
            self._finish()

    def _finish(self) -> None:
        self.is_done = True
        self.stop()
        self.on_done()

    def _hold_back(self, reason: str | None) -> None:
        for region in self._regions:
            region.held_back = reason

    def _count_fallbacks(self) -> int:
        return sum(region.fallback is not None for region in self._regions)
