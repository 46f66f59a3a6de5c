"""What a comparison of two runs found."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

__all__ = ["ResumeDifference", "ResumeReport"]

_MOST_LINES = 12


@dataclass(frozen=True)
class ResumeDifference:
    """One thing that is not the same in both runs.

    Args:
        what: ``"data"``, ``"random numbers"``, ``"learning rates"``, ``"outputs"`` of a step, or
            ``"state"`` at the end.
        name: Which of these, such as ``"torch"``, ``"loss"`` or
            ``"optimizer.layers.0.weight.momentum_buffer"``.
        detail: How they differ.
        step: The step, counted from 1; ``None`` for the state at the end.
        rank: The process.
    """

    what: str
    name: str
    detail: str
    step: int | None = None
    rank: int = 0

    @override
    def __str__(self) -> str:
        where = "at the end" if self.step is None else f"step {self.step}"
        rank = f"rank {self.rank}, " if self.rank else ""
        return f"{rank}{where}: {self.what}: {self.name}: {self.detail}"


@dataclass(frozen=True)
class ResumeReport:
    """Whether a resumed run took the steps of one that was not stopped, bit by bit.

    Args:
        equal: Whether everything compared is the same.
        at_step: After which step the run was stopped and resumed.
        steps: How many steps both runs took in all.
        steps_compared: How many of them came after the stop.
        differences: What is not the same, the first step's first; of the state at the end all.
        explanation: What that means, in a sentence or two; empty if nothing differs.
    """

    equal: bool
    at_step: int
    steps: int
    steps_compared: int
    differences: tuple[ResumeDifference, ...] = ()
    explanation: str = ""

    @override
    def __str__(self) -> str:
        if self.equal:
            return (
                f"Resuming is exact: stopped after step {self.at_step} and resumed, the run took "
                f"the same {self.steps_compared} steps as without a stop, bit by bit (data, random "
                "numbers, learning rates, losses; and at the end weights, optimizer, schedules and "
                "hooks)."
            )
        shown = [f"  {difference}" for difference in self.differences[:_MOST_LINES]]
        more = len(self.differences) - len(shown)
        if more > 0:
            shown.append(f"  and {more} more")
        head = (
            f"Resuming is not exact: stopped after step {self.at_step} and resumed, the run "
            f"differs from one without a stop. {self.explanation}"
        )
        return "\n".join([head, *shown])
