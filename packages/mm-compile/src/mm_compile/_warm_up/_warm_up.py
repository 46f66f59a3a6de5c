"""The first training steps of a model, while it is timed and it is decided what is compiled."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from weakref import ref

from torch import nn

from mm_compile._config import CompileConfig
from mm_compile._outermost import OutermostCall
from mm_compile._region import Region

from ._auto_board import LocalBoard, SharedBoard
from ._auto_plan import AutoPlan
from ._clock import HostClock, clock_for
from ._plan import Decision, Measured, MeasuringPlan, Plan
from ._steps import StepTimer

_logger = logging.getLogger(__name__)
_MEASURING = "its eager step is being timed"
_WAITING = "auto: it is not known yet whether compiling pays"


class WarmUp:
    """Times training steps, and compiles groups of regions as its plan says, until it is done.

    A step begins when the model is called in training. No step is run twice: the eager ones are
    training steps like the others. Afterwards nothing of this is left in a step.

    Args:
        model: The model whose ``training`` tells training calls from others.
        regions: The regions, in the model's order.
        config: The checked config.
        outermost: Tells when the model is called.
        count_disturbances: Counts what takes time that an ordinary step does not.
    """

    def __init__(
        self,
        model: nn.Module,
        regions: Sequence[Region],
        config: CompileConfig,
        outermost: OutermostCall,
        count_disturbances: Callable[[], int],
    ) -> None:
        self._model = ref(model)
        self._regions = regions
        self._groups = _group(regions)
        sizes = [len(group) for group in self._groups]
        self._auto = AutoPlan(sizes, self._fallback_of) if config.auto else None
        self._plan: Plan = self._auto or MeasuringPlan(range(len(self._groups)), config.measure)
        labels = [region.label for region in regions]
        self._board = SharedBoard(labels) if config.auto else LocalBoard()
        self._held_back = _WAITING if config.auto else _MEASURING
        # Made when training begins: the model may be moved to its device before.
        self._times: StepTimer | None = None
        self._count_disturbances = count_disturbances
        self._num_disturbances = 0
        self.num_steps = 0
        self.num_expected: int | None = None
        self.message: str | None = None
        self.is_done = False
        self.on_done: Callable[[], None] = lambda: None
        self._stage = 0
        self._outermost = outermost
        outermost.listeners.append(self.begin_call)
        self._apply(self._plan.first())

    @property
    def clock(self) -> str:
        """What measures the time."""
        return HostClock.name if self._times is None else self._times.clock.name

    def measured(self) -> Measured:
        """Return what is known so far."""
        if self._times is None:
            return Measured()
        measured = self._plan.measured(self._times)
        num_fallbacks = self._count_fallbacks()
        # No times of what is compiled no longer, and none of eager steps called compiled ones.
        if num_fallbacks != self._times.num_fallbacks or (
            num_fallbacks and all(region.fallback or region.held_back for region in self._regions)
        ):
            return replace(measured, compiled_step_s=None)
        return measured

    def expect(self, num_steps: int) -> None:
        """Be told how many training steps are to come."""
        self.num_expected = self.num_steps + num_steps
        if self._auto is not None:
            self._auto.expect(self.num_expected)

    def begin_call(self) -> None:
        """Note that the model is called."""
        model = self._model()
        if model is None or not model.training:
            if self._times is not None:
                self._times.disturb()
            return
        if self._times is None:
            self._times = StepTimer(clock_for(model), self._count_graphs, self._count_fallbacks)
        self.num_steps += 1
        for decision in self._board.due(self.num_steps):
            self._apply(decision)
        if self._is_disturbed():
            self._times.disturb()
        self._times.begin(self._stage)
        if not self.is_done and self._board.is_open(self.num_steps):
            decided = self._plan.decide(self._times, self.num_steps)
            if decided is not None:
                self._board.announce(decided, self.num_steps)

    def stop(self) -> None:
        """Leave the model as it is now."""
        self._outermost.forget(self.begin_call)

    def _apply(self, decision: Decision) -> None:
        self._stage = decision.stage
        compiled = {id(region) for group in decision.compiled for region in self._groups[group]}
        for region in self._regions:
            region.held_back = None if id(region) in compiled else self._held_back
        if not decision.is_final:
            return
        self.is_done = True
        self.message = decision.message
        for region in self._regions:
            if region.held_back is not None:
                region.held_back = decision.message
        if decision.is_refusal and self._board.is_first_rank:
            _logger.warning("compile: %s.", decision.message)
        self.stop()
        self.on_done()

    def _is_disturbed(self) -> bool:
        before, self._num_disturbances = self._num_disturbances, self._count_disturbances()
        return self._num_disturbances != before

    def _count_graphs(self) -> int:
        kinds = {id(region.kind): region.kind for region in self._regions}
        return sum(kind.count_graphs() for kind in kinds.values())

    def _count_fallbacks(self) -> int:
        return sum(region.fallback is not None for region in self._regions)

    def _fallback_of(self, group: int) -> str | None:
        fallbacks = [region.fallback for region in self._groups[group]]
        return fallbacks[0] if all(fallbacks) else None


def _group(regions: Sequence[Region]) -> list[list[Region]]:
    groups: dict[int, list[Region]] = {}
    for region in regions:
        groups.setdefault(id(region.kind), []).append(region)
    return list(groups.values())
