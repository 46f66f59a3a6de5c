"""Differences between a run without a stop and one that was resumed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor
from typing_extensions import override

__all__ = [
    "ResumeDifference",
    "ResumeReport",
    "StepRecord",
    "compare_states",
    "compare_steps",
    "explain",
]

_MOST_LINES = 12

# What two runs of the same steps need not have in common.
_OWN = ("meta", "checkpoint_hook")
_CAUSES = {
    "data": "The resumed run trains on other batches: the order of the data, or what workers draw "
    "for augmentation, does not go on where it was.",
    "random numbers": "The batches are the same, and the random numbers are not: something draws "
    "some outside the steps in one of the runs only.",
    "learning rates": "Batches and random numbers are the same, and the learning rates are not: a "
    "hook or a schedule does not keep its state. Give the hook state_dict and load_state_dict.",
    "outputs": "The same batch, random numbers and learning rates give another output: the forward "
    "pass, or the step before it, depends on something that is in no checkpoint, such as a plain "
    "attribute of the model or a buffer with persistent=False.",
    "state": "The steps gave the same outputs, and what later steps depend on differs at the end.",
}


class StepRecord(NamedTuple):
    """A step: fingerprints of its batch and of the generators before it, its rates and outputs."""

    data: str
    generators: dict[str, str]
    rates: list[float]
    outputs: dict[str, Any]


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


def compare_steps(
    whole: Mapping[int, StepRecord], resumed: Mapping[int, StepRecord], rank: int
) -> list[ResumeDifference]:
    """Return the differences of the first step that has any.

    Args:
        whole: Steps of the run without a stop, by number.
        resumed: Those of the run that went on, which begin later.
        rank: The process.
    """
    for step, record in sorted(resumed.items()):
        if step in whole:
            found = list(_differences(whole[step], record, whole))
            if found:
                return [ResumeDifference(*one, step=step, rank=rank) for one in found]
    return []


def compare_states(
    whole: Any, resumed: Any, names: Mapping[str, list[str]]
) -> list[ResumeDifference]:
    """Return where the contents of two checkpoints differ, entry by entry.

    Args:
        whole: Of the run without a stop.
        resumed: Of the run that went on.
        names: Of the parameters, in the order of each optimizer, by wrapper.
    """
    return [
        ResumeDifference("state", _readable(path, names), detail)
        for path, detail in _walk(_comparable(whole), _comparable(resumed), ())
    ]


def explain(differences: list[ResumeDifference], repeats: list[ResumeDifference]) -> str:
    """Say what the differences tell.

    Args:
        differences: Between the run without a stop and the one that went on.
        repeats: Between two runs without a stop.
    """
    if repeats:
        return (
            "But two runs without a stop differ as well (see "
            f"{repeats[0].what}: {repeats[0].name}), so this says nothing about resuming: make the "
            "training reproducible first, with randomness=dict(seed=0, deterministic=True), and "
            "without random numbers of other generators than Python's, NumPy's global one, and "
            "torch's."
        )
    return _CAUSES[differences[0].what]


def _differences(
    whole: StepRecord, resumed: StepRecord, steps: Mapping[int, StepRecord]
) -> Iterator[tuple[str, str, str]]:
    if whole.data != resumed.data:
        known = [step for step, record in steps.items() if record.data == resumed.data]
        detail = "one that the run without a stop did not come to"
        if known:
            detail = f"that of step {known[0]} of the run without a stop"
        yield "data", "the batch", detail
    for name, state in whole.generators.items():
        if resumed.generators.get(name) != state:
            yield "random numbers", name, "another state before the step"
    if whole.rates != resumed.rates:
        yield "learning rates", "lr", f"{resumed.rates} instead of {whole.rates}"
    for name, value in whole.outputs.items():
        other = resumed.outputs.get(name)
        if not _same(value, other):
            yield "outputs", name, f"{other!r} instead of {value!r}"


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    return type(one) is type(other) and bool(one == other)


def _comparable(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in checkpoint.items() if name.partition("#")[0] not in _OWN}
    windows = kept.get("message_hub")
    if isinstance(windows, list):  # how long steps took is nobody's state
        kept["message_hub"] = [
            {name: window for name, window in one.items() if not name.endswith("time")}
            for one in windows
        ]
    return kept


def _walk(whole: Any, resumed: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], str]]:
    if isinstance(whole, Mapping) and isinstance(resumed, Mapping):
        for key in [*whole, *(key for key in resumed if key not in whole)]:
            if key not in whole or key not in resumed:
                missing = "the run without a stop" if key not in whole else "the resumed run"
                yield (*path, key), f"{missing} has none"
            else:
                yield from _walk(whole[key], resumed[key], (*path, key))
    elif isinstance(whole, Tensor) and isinstance(resumed, Tensor):
        detail = _tensor_difference(whole, resumed)
        if detail:
            yield path, detail
    elif (
        isinstance(whole, (list, tuple))
        and isinstance(resumed, (list, tuple))
        and len(whole) == len(resumed)
    ):
        for index, (one, other) in enumerate(zip(whole, resumed, strict=True)):
            yield from _walk(one, other, (*path, index))
    elif not _same(whole, resumed):
        yield path, f"{_short(resumed)} instead of {_short(whole)}"


def _tensor_difference(whole: Tensor, resumed: Tensor) -> str:
    if whole.shape != resumed.shape or whole.dtype != resumed.dtype:
        return (
            f"{tuple(resumed.shape)} {resumed.dtype} instead of {tuple(whole.shape)} {whole.dtype}"
        )
    # NaN in the same places is the same.
    differs = (whole != resumed) & ~((whole != whole) & (resumed != resumed))  # noqa: PLR0124
    if not bool(differs.any()):
        return ""
    largest = (whole.double() - resumed.double()).abs().nan_to_num().max().item()
    return f"{int(differs.sum())} of {whole.numel()} values, by {largest:.3g} at most"


def _readable(path: tuple[Any, ...], names: Mapping[str, list[str]]) -> str:
    """Return the path with parameters by name, which an optimizer knows by position only."""
    parts = list(path)
    for wrapper, of_wrapper in names.items():
        before = ["optimizer", *([wrapper] if wrapper else []), "state"]
        position = parts[len(before)] if parts[: len(before)] == before else None
        if isinstance(position, int) and position < len(of_wrapper):
            parts[len(before) - 1 : len(before) + 1] = [of_wrapper[position]]
    return ".".join(map(str, parts))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
