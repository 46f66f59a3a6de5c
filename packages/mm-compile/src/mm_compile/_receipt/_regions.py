"""What compiling did to each region of a model, and whether it pays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from mm_compile._counted import counted
from mm_compile._region import Region
from mm_compile._verify._compare import Verified
from mm_compile._warm_up._steps import in_words

from ._breaks import GraphBreak


@dataclass(frozen=True)
class RegionStatus:
    """How a compiled part of a model does.

    Regions that share code share the numbers and texts that tell of it.

    Attributes:
        name: Its dotted name in the model; empty for the model itself.
        target: The method that is compiled.
        is_compiled: Whether calls run compiled code.
        failure: Why they do not, with the user's ``file:line`` where known; else None.
        recompiles: How often its code was compiled again for other inputs.
        graphs: Graphs captured of its code.
        label: Its name and class, as messages write it.
        changes: What changed before each recompilation.
        graph_breaks: Where capturing stopped, each place once.
        verified: How its first calls compared with eager ones; None without ``verify``.
    """

    name: str
    target: str
    is_compiled: bool
    failure: str | None
    recompiles: int
    graphs: int
    label: str = ""
    changes: tuple[str, ...] = ()
    graph_breaks: tuple[GraphBreak, ...] = ()
    verified: Verified | None = None


@dataclass(frozen=True)
class StepTimes:
    """What a training step takes, and what compiling took.

    A step lasts from one training call of the model to the next: backward, optimizer and data
    loading are in it.

    Attributes:
        compiled_s: Seconds of a compiled step, the median of those timed.
        eager_s: Seconds of an eager step; None without ``measure`` and ``"auto"``.
        startup_s: Seconds that the steps which compiled took beyond ordinary ones.
        clock: What measured them: ``"host clock"`` or ``"device events"``.
        expected_steps: Training steps of the whole run, if the handle was told.
    """

    compiled_s: float
    eager_s: float | None
    startup_s: float
    clock: str
    expected_steps: int | None = None

    @property
    def saved_s(self) -> float | None:
        """Seconds that compiling saves of each step; less than 0 if it costs."""
        return None if self.eager_s is None else self.eager_s - self.compiled_s

    @property
    def break_even_steps(self) -> int | None:
        """After how many compiled steps the start-up is saved; None if never, or not known."""
        if self.saved_s is None or self.saved_s <= 0:
            return None
        return ceil(self.startup_s / self.saved_s)

    def __str__(self) -> str:
        compiled = f"step: {in_words(self.compiled_s)} compiled"
        if self.saved_s is None:
            return (
                f"{compiled}, eager not timed (measure=True times it); start-up "
                f"{self.startup_s:.1f} s"
            )
        return (
            f"{compiled}, {in_words(self.eager_s or 0)} eager, by {self.clock}; start-up "
            f"{self.startup_s:.1f} s; {self._verdict()}"
        )

    def _verdict(self) -> str:
        steps = self.break_even_steps
        if steps is None:
            return "compiling does not make it faster"
        pays = (
            f"saves {in_words(self.saved_s or 0)} of each step, pays after {counted(steps, 'step')}"
        )
        if self.expected_steps is None:
            return pays
        end = "pays" if steps <= self.expected_steps else "does not pay"
        return f"{pays}; this run has {self.expected_steps}, so compiling {end}"


def status_of(region: Region, verified: Verified | None) -> RegionStatus:
    """Describe a region as it does now."""
    units = list(region.kind.units.values())
    failure = region.fallback or region.held_back
    return RegionStatus(
        name=region.name,
        target=region.attribute,
        is_compiled=region.is_active and failure is None,
        failure=failure,
        recompiles=region.kind.count_recompiles(),
        graphs=region.kind.count_graphs(),
        label=region.label,
        changes=tuple(change for unit in units for change in unit.changes),
        graph_breaks=tuple(dict.fromkeys(each for unit in units for each in unit.breaks)),
        verified=verified,
    )


def lines_about(
    regions: Sequence[RegionStatus],
    optimizers: Sequence[RegionStatus] = (),
    decision: str | None = None,
) -> Iterator[str]:
    """Say what is compiled and what is not, and what was in the way."""
    num_compiled = sum(region.is_compiled for region in regions)
    yield f"{num_compiled} of {counted(len(regions), 'region')} compiled"
    for labels, _ in _grouped((step.label, "") for step in optimizers if step.is_compiled):
        yield f"compiled: {labels}"
    everything = (*regions, *optimizers)
    for labels, reason in _grouped(
        (each.label, each.failure) for each in everything if each.failure is not None
    ):
        # A line of its own tells what "auto" decided.
        yield f"not compiled: {labels}: {'as auto decided' if reason == decision else reason}"
    for labels, place in _grouped(
        (each.label, str(place)) for each in everything for place in each.graph_breaks
    ):
        yield f"graph break in {labels} at {place}"
    for labels, change in _grouped(
        (region.label, change) for region in regions for change in region.changes
    ):
        yield f"compiled again: {labels}: {change}"
    yield from _lines_about_verified(regions)


def _lines_about_verified(regions: Sequence[RegionStatus]) -> Iterator[str]:
    verified = [(region, region.verified) for region in regions if region.verified is not None]
    compared = [(region, each) for region, each in verified if each.tensor is not None]
    if compared:
        region, worst = max(compared, key=lambda pair: pair[1].deviation / (pair[1].allowed or 1.0))
        yield (
            f"verified: {counted(len(compared), 'region')} against eager; most in "
            f"{region.label}, where {worst.tensor} deviates by {worst.deviation:.2g}, "
            f"{worst.allowed:.2g} allowed"
        )
    for labels, note in _grouped(
        (region.label, each.note) for region, each in verified if each.note
    ):
        yield f"not verified: {labels}: {note}"


def _grouped(pairs: Iterator[tuple[str, str | None]]) -> Iterator[tuple[str, str]]:
    # Regions share code: what is said of twelve of them is one line.
    labels: dict[str, Counter[str]] = {}
    for label, text in pairs:
        labels.setdefault(text or "", Counter())[label] += 1
    for text, named in labels.items():
        first, times = next(iter(named)), max(named.values())
        more = f" and {len(named) - 1} more" if len(named) > 1 else ""
        yield f"{first}{more}{f', {times} times' if times > 1 else ''}", text
