"""What of a model is compiled when, during its first training steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ._steps import SETTLING_STEPS, StepTimer

# How many ordinary steps tell what a step takes.
NUM_SAMPLES = 8


@dataclass(frozen=True)
class Decision:
    """What is compiled from some training step on.

    Attributes:
        stage: A number of its own for what is compiled; step times are kept apart by it.
        compiled: Which groups of regions are.
        is_final: Whether nothing is left to decide or to measure.
        message: Why, for the log and the receipt; None if nobody needs to know.
        is_refusal: Whether the message says that compiling does not pay.
    """

    stage: int
    compiled: tuple[int, ...]
    is_final: bool = False
    message: str | None = None
    is_refusal: bool = False


@dataclass(frozen=True)
class Measured:
    """What the first training steps told.

    Attributes:
        eager_step_s: Seconds of an eager step; None if none was timed.
        compiled_step_s: Seconds of a compiled step; None if none was timed yet.
        startup_s: What the steps that compiled took beyond ordinary ones, in seconds.
    """

    eager_step_s: float | None = None
    compiled_step_s: float | None = None
    startup_s: float | None = None


class Plan(Protocol):
    """Decides what is compiled next."""

    def first(self) -> Decision:
        """Return what holds from the first step on."""

    def decide(self, times: StepTimer, num_steps: int) -> Decision | None:
        """Return what holds after ``num_steps`` training steps, or None if nothing changes."""

    def measured(self, times: StepTimer) -> Measured:
        """Return what is known so far."""


class MeasuringPlan:
    """Runs some steps eagerly and the others compiled, by their number alone.

    All ranks of a distributed run count alike and need not agree.

    Args:
        groups: The groups of regions.
        num_eager: Eager steps to time; with 0 of them, everything is compiled from the first on.
    """

    def __init__(self, groups: Sequence[int], num_eager: int) -> None:
        self._everything = tuple(groups)
        self._num_eager = num_eager
        self._stage = 0 if num_eager else 1

    def first(self) -> Decision:
        """Return what holds from the first step on."""
        return Decision(self._stage, self._everything if self._stage else ())

    def decide(self, times: StepTimer, num_steps: int) -> Decision | None:
        """Return what holds after ``num_steps`` training steps, or None if nothing changes."""
        if self._stage == 0:
            if num_steps < SETTLING_STEPS + self._num_eager:
                return None
            self._stage = 1
            return Decision(1, self._everything)
        if len(times.of_stage(1).steady) < NUM_SAMPLES:
            return None
        return Decision(1, self._everything, is_final=True)

    def measured(self, times: StepTimer) -> Measured:
        """Return what is known so far."""
        compiled = times.of_stage(1)
        step = compiled.step_seconds
        return Measured(
            eager_step_s=times.of_stage(0).step_seconds if self._num_eager else None,
            compiled_step_s=step,
            startup_s=None if step is None else compiled.startup_seconds,
        )
