"""``cfg="auto"``: compile what gains more than it costs in the steps that are left.

What a step takes eagerly is measured; what compiling would cost and gain is not known before. So
the largest group of equal regions is compiled first, if even a small gain would pay for a slow
compiler in the rest of the run; what it cost and gained then tells about the next group.
"""

from collections.abc import Callable, Sequence

from mm_compile._counted import counted

from ._plan import NUM_SAMPLES, Decision, Measured
from ._steps import StageTimes, StepTimer, in_words

# Expected before anything was compiled: one group takes inductor 30 s on a slow machine, and a
# fully compiled step is a tenth faster.
EXPECTED_COST_S = 30.0
EXPECTED_GAIN = 0.1
# The expected gain must be so many times the expected cost: most of all, a run shall not lose.
_MARGIN_UNKNOWN = 2.0
_MARGIN_MEASURED = 1.5
# A smaller gain is noise.
_LEAST_GAIN = 0.01
# Inputs that change all the time leave no ordinary step to measure.
_MAX_STEPS_OF_A_TRIAL = 100


class AutoPlan:
    """Compiles group by group as long as it pays, and says why it stops.

    Args:
        sizes: How many regions each group has.
        fallback_of: Says why a group runs eagerly though it was to be compiled; else None.
    """

    def __init__(
        self, sizes: Sequence[int], fallback_of: Callable[[int], str | None] = lambda _group: None
    ) -> None:
        self._sizes = list(sizes)
        self._fallback_of = fallback_of
        self._waiting = sorted(range(len(sizes)), key=lambda group: -sizes[group])
        self._kept: tuple[int, ...] = ()
        self._trial: int | None = None
        self._stage = 0
        self._stage_began = 0
        self._best_step = 0.0
        self._eager_step: float | None = None
        self._compiled_step: float | None = None
        self._gained = 0.0
        self._cost: float | None = None
        self._total_cost = 0.0
        self._last_step: int | None = None

    def first(self) -> Decision:
        """Return what holds from the first step on: nothing is compiled."""
        return Decision(0, ())

    def expect(self, last_step: int) -> None:
        """Remember which training step is the last one."""
        self._last_step = last_step

    def decide(self, times: StepTimer, num_steps: int) -> Decision | None:
        """Return what holds after ``num_steps`` training steps, or None if nothing changes."""
        stage = times.of_stage(self._stage)
        step = stage.step_seconds
        if step is None or len(stage.steady) < NUM_SAMPLES:
            if self._trial is None or num_steps - self._stage_began <= _MAX_STEPS_OF_A_TRIAL:
                return None
            return self._stop(
                f"after {_MAX_STEPS_OF_A_TRIAL} steps it is still being compiled for other inputs",
                num_steps,
            )
        if self._trial is not None:
            refusal = self._judge(stage, step, num_steps)
            if refusal is not None:
                return refusal
        elif not self._kept:
            self._best_step = self._eager_step = step
        return self._next(num_steps)

    def measured(self, times: StepTimer) -> Measured:  # noqa: ARG002 - each plan is asked so
        """Return what is known so far."""
        return Measured(
            eager_step_s=self._eager_step,
            compiled_step_s=self._compiled_step,
            startup_s=self._total_cost or None,
        )

    def _judge(self, stage: StageTimes, step: float, num_steps: int) -> Decision | None:
        assert self._trial is not None
        fallback = self._fallback_of(self._trial)
        if fallback is not None:
            return self._stop(f"what was tried runs eagerly: {fallback}", num_steps)
        gain = self._best_step - step
        # Nothing is measured where every step that compiled did something else too.
        self._cost = stage.startup_seconds or EXPECTED_COST_S
        self._total_cost += stage.startup_seconds
        is_gain = gain >= _LEAST_GAIN * self._best_step
        if is_gain or not self._kept:
            self._compiled_step = step
        if not is_gain:
            return self._stop(
                f"a step takes {in_words(self._best_step)} without it and {in_words(step)} with it",
                num_steps,
            )
        self._kept = (*self._kept, self._trial)
        self._trial = None
        self._gained += gain
        self._best_step = step
        return None

    def _next(self, num_steps: int) -> Decision | None:
        if not self._waiting:
            return self._finish(num_steps, f"saves {in_words(self._gained)} of each step")
        gain, cost, margin = self._expected()
        is_known = self._last_step is not None
        num_left = max(0, self._last_step - num_steps) if self._last_step is not None else num_steps
        if gain * num_left > margin * cost:
            self._trial = self._waiting.pop(0)
            return self._enter((*self._kept, self._trial), num_steps)
        if not is_known:
            return None
        return self._finish(
            num_steps,
            f"{num_left} steps of {in_words(self._best_step)} are left; compiling "
            f"{'more' if self._kept else 'it'} is expected to take {cost:.0f} s and to save "
            f"{gain * num_left:.0f} s, which is too little for the risk",
            is_refusal=not self._kept,
        )

    def _expected(self) -> tuple[float, float, float]:
        size = self._sizes[self._waiting[0]]
        if self._cost is None:
            gain = EXPECTED_GAIN * self._best_step * size / sum(self._sizes)
            return gain, EXPECTED_COST_S, _MARGIN_UNKNOWN
        gain_each = self._gained / sum(self._sizes[group] for group in self._kept)
        return gain_each * size, self._cost, _MARGIN_MEASURED

    def _enter(self, compiled: tuple[int, ...], num_steps: int) -> Decision:
        self._stage += 1
        self._stage_began = num_steps
        return Decision(self._stage, compiled)

    def _stop(self, reason: str, num_steps: int) -> Decision:
        self._trial = None
        return self._finish(num_steps, reason, is_refusal=True)

    def _finish(self, num_steps: int, reason: str, *, is_refusal: bool = False) -> Decision:
        num_kept = sum(self._sizes[group] for group in self._kept)
        num_regions = counted(sum(self._sizes), "region")
        what = f"{num_kept} of {num_regions} compiled" if num_kept else "not compiled"
        self._stage += 1
        return Decision(
            self._stage,
            self._kept,
            is_final=True,
            message=f"auto, after {counted(num_steps, 'step')}: {what}: {reason}",
            is_refusal=is_refusal,
        )
