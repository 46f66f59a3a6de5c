"""Report of what compiling did: graphs, graph breaks, recompilations, seconds, step times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any

from ._failure import GraphBreak
from ._region import Region
from ._words import counted, duration


@dataclass(frozen=True)
class Verified:
    """How a region's compiled code compared with its eager code.

    Attributes:
        num_calls: Training calls compared.
        tensor: The tensor that deviated most, relative to what is allowed; None if none was
            compared.
        deviation: The largest difference of one of its elements.
        allowed: The difference that ``rtol`` and ``atol`` allow.
        note: Why calls were not compared; else None.
    """

    num_calls: int = 0
    tensor: str | None = None
    deviation: float = 0.0
    allowed: float = 0.0
    note: str | None = None

    @property
    def ratio(self) -> float:
        """The deviation relative to what is allowed."""
        return (
            self.deviation / self.allowed if self.allowed else float("inf") * bool(self.deviation)
        )


@dataclass(frozen=True)
class RegionStatus:
    """Status of a compiled part of a model.

    Regions that share code share its numbers.

    Attributes:
        name: Its dotted name in the model; empty for the model itself.
        target: The compiled method.
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
    """Duration of a training step, and of compiling.

    A step lasts from one training call of the model to the next, with backward, optimizer and data
    loading.

    Attributes:
        compiled_s: Seconds of a compiled step, the median of those timed.
        eager_s: Seconds of an eager step; None without ``"auto"``.
        startup_s: Seconds spent compiling.
        clock: ``"host clock"`` or ``"device events"``.
    """

    compiled_s: float
    eager_s: float | None
    startup_s: float
    clock: str

    @property
    def saved_s(self) -> float | None:
        """Seconds that compiling saves in each step; negative if it costs."""
        return None if self.eager_s is None else self.eager_s - self.compiled_s

    @property
    def break_even_steps(self) -> int | None:
        """Number of compiled steps that save the start-up; None if never, or unknown."""
        if self.saved_s is None or self.saved_s <= 0:
            return None
        return ceil(self.startup_s / self.saved_s)

    def __str__(self) -> str:
        text = f"step: {duration(self.compiled_s)} compiled, by {self.clock}; "
        text += f"start-up {self.startup_s:.1f} s"
        if self.eager_s is not None:
            text += f"; {duration(self.eager_s)} eager"
        if (steps := self.break_even_steps) is not None:
            text += f"; pays after {counted(steps, 'step')}"
        return text


@dataclass(frozen=True)
class CompileReport:
    """What was compiled since ``compile_model``.

    Nothing is compiled before the first call of the model. ``str(report)`` is a text of several
    lines for a log.

    Attributes:
        target: The compiled methods, separated by commas.
        backend: The backend's name.
        mode: The mode, or None where the config has none.
        graphs: Graphs captured, including recompilations.
        graph_breaks: Places where capturing stopped.
        recompiles: How often code was compiled again for other inputs.
        compile_seconds: Seconds spent in the backend.
        regions: The compiled parts, in the model's order.
        steps: Duration of training steps; None before they were timed.
        decision: What ``"auto"`` decided, and why; None before it did.
        optimizers: The steps given to ``compile_optimizer``.
    """

    target: str
    backend: str
    mode: str | None
    graphs: int
    graph_breaks: int
    recompiles: int
    compile_seconds: float
    regions: tuple[RegionStatus, ...] = ()
    steps: StepTimes | None = None
    decision: str | None = None
    optimizers: tuple[RegionStatus, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return everything as numbers, strings, lists and dicts, fit for JSON.

        Example:
            >>> compile_model(model, True).report().to_dict()["graphs"]
            0
        """
        fields = asdict(self)
        if self.steps is not None:
            fields["steps"]["saved_s"] = self.steps.saved_s
            fields["steps"]["break_even_steps"] = self.steps.break_even_steps
        plain: dict[str, Any] = _with_lists(fields)
        return plain

    def __str__(self) -> str:
        mode = f" (mode {self.mode})" if self.mode else ""
        first = (
            f"{self.target} by {self.backend}{mode}: {counted(self.graphs, 'graph')}, "
            f"{counted(self.graph_breaks, 'graph break')}, "
            f"{counted(self.recompiles, 'recompile')}, "
            f"{self.compile_seconds:.1f} s in the compiler"
        )
        lines = [first]
        if self.regions:
            lines += self._lines_about_regions()
        if self.decision is not None:
            lines.append(self.decision)
        if self.steps is not None:
            lines.append(str(self.steps))
        return "\n  ".join(lines)

    def _lines_about_regions(self) -> Iterator[str]:
        regions, everything = self.regions, (*self.regions, *self.optimizers)
        num_compiled = sum(region.is_compiled for region in regions)
        yield f"{num_compiled} of {counted(len(regions), 'region')} compiled"
        for labels, _ in _grouped((step.label, "") for step in self.optimizers if step.is_compiled):
            yield f"compiled: {labels}"
        failures = ((each.label, each.failure) for each in everything if each.failure)
        for labels, reason in _grouped(failures):
            # The decision has a line of its own.
            shown = "as auto decided" if reason == self.decision else reason
            yield f"not compiled: {labels}: {shown}"
        breaks = [(each.label, str(place)) for each in everything for place in each.graph_breaks]
        for labels, place in _grouped(breaks):
            yield f"graph break in {labels} at {place}"
        changes = ((region.label, change) for region in regions for change in region.changes)
        for labels, change in _grouped(changes):
            yield f"compiled again: {labels}: {change}"
        yield from _lines_about_verified(regions)


def status_of(region: Region, verified: Verified | None) -> RegionStatus:
    """Return the present status of a region."""
    codes = list(region.kind.codes.values())
    failure = region.fallback or region.held_back
    return RegionStatus(
        name=region.name,
        target=region.attribute,
        is_compiled=region.is_active and failure is None,
        failure=failure,
        recompiles=region.kind.count_recompiles(),
        graphs=region.kind.count_graphs(),
        label=region.label,
        changes=tuple(change for code in codes for change in code.changes),
        graph_breaks=tuple(dict.fromkeys(each for code in codes for each in code.breaks)),
        verified=verified,
    )


def _lines_about_verified(regions: Iterable[RegionStatus]) -> Iterator[str]:
    verified = [(region, region.verified) for region in regions if region.verified is not None]
    compared = [(region, each) for region, each in verified if each.tensor is not None]
    if compared:
        region, worst = max(compared, key=lambda pair: pair[1].deviation / (pair[1].allowed or 1.0))
        yield (
            f"verified: {counted(len(compared), 'region')} against eager; most in "
            f"{region.label}, where {worst.tensor} deviates by {worst.deviation:.2g}, "
            f"{worst.allowed:.2g} allowed"
        )
    notes = ((region.label, each.note) for region, each in verified if each.note)
    for labels, note in _grouped(notes):
        yield f"not verified: {labels}: {note}"


def _grouped(pairs: Iterable[tuple[str, str | None]]) -> Iterator[tuple[str, str]]:
    """Yield each text once, with the labels that it applies to."""
    labels: dict[str, Counter[str]] = {}
    for label, text in pairs:
        labels.setdefault(text or "", Counter())[label] += 1
    for text, named in labels.items():
        first, times = next(iter(named)), max(named.values())
        more = f" and {len(named) - 1} more" if len(named) > 1 else ""
        yield f"{first}{more}{f', {times} times' if times > 1 else ''}", text


def _with_lists(value: Any) -> Any:
    # JSON has lists for tuples: the result equals what is read back.
    if isinstance(value, dict):
        return {key: _with_lists(item) for key, item in value.items()}
    return [_with_lists(item) for item in value] if isinstance(value, (list, tuple)) else value
