"""Report of what compiling did: graphs, graph breaks, recompilations, seconds, step times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
        if not self.deviation:
            return 0.0
        return self.deviation / self.allowed if self.allowed else float("inf")

    def __str__(self) -> str:
        return f"{self.tensor} deviates by {self.deviation:.2g}, {self.allowed:.2g} allowed"


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

    def __str__(self) -> str:
        text = f"step: {duration(self.compiled_s)} compiled, by {self.clock}; "
        text += f"start-up {self.startup_s:.1f} s"
        if self.eager_s is not None:
            text += f"; {duration(self.eager_s)} eager"
        return text


@dataclass(frozen=True)
class CompileReport:
    """What was compiled since ``compile_model``.

    Nothing is compiled before the first call of the model. ``str(report)`` is a text of several
    lines for a log, ``dataclasses.asdict(report)`` is for programs.

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

    def __str__(self) -> str:
        mode = f" (mode {self.mode})" if self.mode else ""
        counts = (
            counted(self.graphs, "graph"),
            counted(self.graph_breaks, "graph break"),
            counted(self.recompiles, "recompile"),
            f"{self.compile_seconds:.1f} s in the compiler",
        )
        lines = [f"{self.target} by {self.backend}{mode}: {', '.join(counts)}"]
        if self.regions:
            num_compiled = sum(region.is_compiled for region in self.regions)
            lines.append(f"{num_compiled} of {counted(len(self.regions), 'region')} compiled")
            lines += self._lines_about_parts((*self.regions, *self.optimizers))
        lines += [str(each) for each in (self.decision, self.steps) if each is not None]
        return "\n  ".join(lines)

    def _lines_about_parts(self, parts: Sequence[RegionStatus]) -> Iterator[str]:
        found: list[tuple[str, str, str]] = []  # how the line begins, label, text
        for each in parts:
            if each in self.optimizers and each.is_compiled:
                found.append(("compiled: ", each.label, ""))
            if each.failure:  # the decision has a line of its own
                failure = "as auto decided" if each.failure == self.decision else each.failure
                found.append(("not compiled: ", each.label, f": {failure}"))
            found += [("graph break in ", each.label, f" at {at}") for at in each.graph_breaks]
            found += [("compiled again: ", each.label, f": {change}") for change in each.changes]
            if each.verified is not None and each.verified.note:
                found.append(("not verified: ", each.label, f": {each.verified.note}"))
        labels: dict[tuple[str, str], Counter[str]] = {}
        for start, label, text in found:
            labels.setdefault((start, text), Counter())[label] += 1
        for (start, text), named in labels.items():
            first, times = next(iter(named)), max(named.values())
            more = f" and {len(named) - 1} more" if len(named) > 1 else ""
            yield f"{start}{first}{more}{f', {times} times' if times > 1 else ''}{text}"
        compared = [(each.label, each.verified) for each in parts if each.verified is not None]
        compared = [(label, verified) for label, verified in compared if verified.tensor]
        if compared:
            label, worst = max(compared, key=lambda pair: pair[1].ratio)
            number = counted(len(compared), "region")
            yield f"verified: {number} against eager; most in {label}, where {worst}"


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
