"""The first training steps: timing, and ``"auto"``, which compiles if that pays.

No step runs twice: the eager steps that are timed are training steps like the others.
"""

import logging
from collections.abc import Callable, Sequence
from weakref import ref

from torch import nn

from ._config import CompileConfig
from ._model_call import ModelCall
from ._ranks import Notes, reads_in
from ._region import Region
from ._step_times import SETTLING_STEPS, Clock, StageTimes, StepTimer
from ._words import counted, duration

_logger = logging.getLogger(__name__)

_NUM_SAMPLES = 8
# What "auto" expects before it compiles: inductor takes 30 s for a group of equal regions, and
# saves a tenth of a step. Savings must be twice the cost, so that a run hardly ever loses.
_EXPECTED_COST_S = 30.0
_EXPECTED_GAIN = 0.1
_MARGIN = 2.0
# A smaller gain is noise.
_LEAST_GAIN = 0.01
# Inputs that change all the time leave no ordinary step to time.
_MAX_TRIAL_STEPS = 100
_EAGER, _COMPILED, _REFUSED = range(3)
_HELD_BACK = {True: "auto: it is not decided yet", False: "its eager step is being timed"}


class WarmUp:
    """Times training steps, and decides which stage they run in: eager or compiled.

    With ``measure``, the stage changes after that many steps. With ``"auto"``, rank 0 decides for
    all ranks. Afterwards nothing of this is left in a step.

    Args:
        model: The model; its ``training`` distinguishes training calls.
        regions: Its regions.
        config: The checked config.
        model_call: Reports the calls of the model.
        count_comparisons: Returns the number of comparisons of ``verify``, which take extra time.

    Attributes:
        num_steps: Training steps so far.
        num_expected: Training steps of the whole run, if known.
        message: What ``"auto"`` decided, and why.
        is_done: Whether steps are timed and ``"auto"`` has decided.
        on_done: Called then.
    """

    def __init__(
        self,
        model: nn.Module,
        regions: Sequence[Region],
        config: CompileConfig,
        model_call: ModelCall,
        count_comparisons: Callable[[], int],
    ) -> None:
        self._model = ref(model)
        self._regions = regions
        self._config = config
        self._notes = Notes("auto", [region.label for region in regions]) if config.auto else None
        # Made when training begins: the model may move to its device before.
        self._timer: StepTimer | None = None
        self._count_comparisons = count_comparisons
        self._num_comparisons = 0
        # Stage and message that hold from a step on.
        self._planned: tuple[int, int, str | None] | None = None
        self._trial_began = self._timer_fallbacks = 0
        self.num_steps = 0
        self.num_expected: int | None = None
        self.message: str | None = None
        self.is_done = False
        self.on_done: Callable[[], None] = lambda: None
        self._model_call = model_call
        model_call.on_begin.append(self.begin_call)
        self._stage = _EAGER if config.auto or config.measure else _COMPILED
        self._hold_back(_HELD_BACK[config.auto] if self._stage == _EAGER else None)

    @property
    def clock(self) -> str:
        """The name of the clock."""
        return "host clock" if self._timer is None else self._timer.clock.name

    def expect(self, num_steps: int) -> None:
        """Set the number of training steps to come."""
        self.num_expected = self.num_steps + num_steps

    def times(self) -> tuple[StageTimes, StageTimes] | None:
        """Return the times of eager and of compiled steps; None while no region is compiled."""
        if self._timer is None or all(each.fallback or each.held_back for each in self._regions):
            return None
        if self._stage != _COMPILED or self._num_fallbacks() != self._timer_fallbacks:
            return None
        return self._timer.of_stage(_EAGER), self._timer.of_stage(_COMPILED)

    def begin_call(self) -> None:
        """Account for a call of the model."""
        model = self._model()
        if model is None or not model.training:
            if self._timer is not None:
                self._timer.disturb()
            return
        if self._timer is None:
            self._timer = StepTimer(Clock(model))
        self.num_steps += 1
        if self._notes is not None and not self._notes.is_main_rank and reads_in(self.num_steps):
            for note in self._notes.read():
                self._planned = (note["since"], note["stage"], note["message"])
        if self._planned is not None and self.num_steps >= self._planned[0]:
            _, stage, message = self._planned
            self._planned = None
            self._enter(stage, message)
        num_comparisons = self._count_comparisons()
        if num_comparisons != self._num_comparisons:
            self._num_comparisons = num_comparisons
            self._timer.disturb()
        self._timer_fallbacks = self._num_fallbacks()
        self._timer.begin(self._stage, self._num_graphs(), self._timer_fallbacks)
        if not self.is_done and self._planned is None:
            self._decide(self._timer.of_stage(self._stage))

    def stop(self) -> None:
        """Leave the model as it is now."""
        if self.begin_call in self._model_call.on_begin:
            self._model_call.on_begin.remove(self.begin_call)

    def _decide(self, times: StageTimes) -> None:
        if not self._config.auto:
            if self._stage == _EAGER:
                if self.num_steps >= SETTLING_STEPS + self._config.measure:
                    self._planned = (self.num_steps + 1, _COMPILED, None)
            elif len(times.steady) >= _NUM_SAMPLES:
                self._finish()
            return
        assert self._notes is not None
        if not self._notes.is_main_rank or not reads_in(self.num_steps):
            return
        choose = self._choose_to_compile if self._stage == _EAGER else self._choose_to_keep
        chosen = choose(times)
        if chosen is not None:
            since = self.num_steps + 1
            while not reads_in(since):
                since += 1
            self._planned = (since, *chosen)
            self._notes.write({"since": since, "stage": chosen[0], "message": chosen[1]})

    def _choose_to_compile(self, times: StageTimes) -> tuple[int, str | None] | None:
        step = times.step_s
        if step is None or len(times.steady) < _NUM_SAMPLES:
            return None
        # Without a word, as many steps are to come as there have been.
        num_left = self.num_steps
        if self.num_expected is not None:
            num_left = max(0, self.num_expected - self.num_steps)
        num_kinds = len({id(region.kind) for region in self._regions})
        gain, cost = _EXPECTED_GAIN * step * num_left, _EXPECTED_COST_S * num_kinds
        if gain > _MARGIN * cost:
            return _COMPILED, None
        if self.num_expected is None:
            return None
        return _REFUSED, self._refusal(
            f"{num_left} steps of {duration(step)} are left; compiling is expected to take "
            f"{cost:.0f} s and to save {gain:.0f} s, which is too little for the risk"
        )

    def _choose_to_keep(self, times: StageTimes) -> tuple[int, str | None] | None:
        assert self._timer is not None
        step = times.step_s
        fallbacks = [region.fallback for region in self._regions]
        if all(fallbacks):
            return _REFUSED, self._refusal(f"what was tried runs eagerly: {fallbacks[0]}")
        if step is None or len(times.steady) < _NUM_SAMPLES:
            if self.num_steps - self._trial_began <= _MAX_TRIAL_STEPS:
                return None
            return _REFUSED, self._refusal(
                f"after {_MAX_TRIAL_STEPS} steps it is still being compiled for other inputs"
            )
        eager = self._timer.of_stage(_EAGER).step_s or 0.0
        if eager - step < _LEAST_GAIN * eager:
            return _REFUSED, self._refusal(
                f"a step takes {duration(eager)} eager and {duration(step)} compiled"
            )
        num_compiled = counted(len(self._regions), "region")
        return _COMPILED, (
            f"auto, after {counted(self.num_steps, 'step')}: {num_compiled} compiled: saves "
            f"{duration(eager - step)} of each step"
        )

    def _refusal(self, reason: str) -> str:
        return f"auto, after {counted(self.num_steps, 'step')}: not compiled: {reason}"

    def _enter(self, stage: int, message: str | None) -> None:
        if message is None:
            self._stage, self._trial_began = stage, self.num_steps
            self._hold_back(None)
            return
        self.message = message
        if stage == _REFUSED:
            self._stage = _REFUSED
            self._hold_back(message)
            if self._notes is not None and self._notes.is_main_rank:
                _logger.warning("compile: %s.", message)
        self._finish()

    def _finish(self) -> None:
        self.is_done = True
        self.stop()
        self.on_done()

    def _hold_back(self, reason: str | None) -> None:
        for region in self._regions:
            region.held_back = reason

    def _num_graphs(self) -> int:
        kinds = {id(region.kind): region.kind for region in self._regions}
        return sum(kind.count_graphs() for kind in kinds.values())

    def _num_fallbacks(self) -> int:
        return sum(region.fallback is not None for region in self._regions)
