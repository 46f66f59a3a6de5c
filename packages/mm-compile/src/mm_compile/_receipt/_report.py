"""What compiling did: a difference of dynamo's own counters, and what the regions tell."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from mm_compile._counted import counted
from mm_compile._torch import torch_version

from ._regions import RegionStatus, StepTimes, lines_about


@dataclass(frozen=True)
class CompileReport:
    """What was compiled since a model was handed to ``compile_model``.

    Dynamo counts for the whole process, so two models that compile at the same time share the
    first four numbers. Nothing is compiled before the first call of the model.

    ``str(report)`` is a text of several lines for a log.

    Attributes:
        target: The methods that are compiled, with commas between them.
        backend: The backend's name.
        mode: The mode, or None where the config names none.
        graphs: Graphs captured, those of recompilations included.
        graph_breaks: Places where capturing stopped; counted again by every recompilation.
        recompiles: How often code that was compiled before was compiled for other inputs.
        compile_seconds: Time spent in the compiler, in seconds.
        regions: What was compiled, in the model's order, and how each part does.
        steps: What training steps take; None before they were timed.
        decision: What ``"auto"`` decided, and why; None before it did.
        optimizers: The steps given to ``compile_optimizer``, told as regions are.
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
        """Return everything as numbers, texts, lists and dicts, fit for JSON.

        Example:
            >>> compile_model(model, True).report().to_dict()["graphs"]
            0
        """
        fields = asdict(self)
        if self.steps is not None:
            fields["steps"]["saved_s"] = self.steps.saved_s
            fields["steps"]["break_even_steps"] = self.steps.break_even_steps
        # Tuples become lists in JSON: equal to what is read back.
        plain: dict[str, Any] = _with_lists(fields)
        return plain

    def __str__(self) -> str:
        lines = [self._first_line()]
        if self.regions:
            lines += lines_about(self.regions, self.optimizers, self.decision)
        everything = (*self.regions, *self.optimizers)
        if self.graph_breaks and not any(each.graph_breaks for each in everything):
            lines.append("graph breaks: this torch does not tell where")
        if self.decision is not None:
            lines.append(self.decision)
        if self.steps is not None:
            lines.append(str(self.steps))
        return "\n  ".join(lines)

    def _first_line(self) -> str:
        mode = f" (mode {self.mode})" if self.mode else ""
        return (
            f"{self.target} by {self.backend}{mode}: {counted(self.graphs, 'graph')}, "
            f"{counted(self.graph_breaks, 'graph break')}, "
            f"{counted(self.recompiles, 'recompile')}, "
            f"{self.compile_seconds:.1f} s in the compiler"
        )


@dataclass(frozen=True)
class DynamoCounts:
    """Dynamo's counters of this process at one moment."""

    graphs: int = 0
    graph_breaks: int = 0
    recompiles: int = 0
    compile_seconds: float = 0.0

    @classmethod
    def now(cls) -> DynamoCounts:
        """Read the counters; needs a torch that compiles."""
        from torch._dynamo import utils  # noqa: PLC0415 - imports dynamo

        return cls(
            graphs=utils.counters["stats"]["unique_graphs"],
            graph_breaks=sum(utils.counters["graph_break"].values()),
            recompiles=_count_recompiles(utils),
            compile_seconds=_sum_compile_seconds(utils),
        )

    def since(self, earlier: DynamoCounts) -> DynamoCounts:
        """Subtract ``earlier``; at least zero, since ``torch._dynamo.reset`` clears some counts."""
        return DynamoCounts(
            graphs=max(0, self.graphs - earlier.graphs),
            graph_breaks=max(0, self.graph_breaks - earlier.graph_breaks),
            recompiles=max(0, self.recompiles - earlier.recompiles),
            compile_seconds=max(0.0, self.compile_seconds - earlier.compile_seconds),
        )


def _with_lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_lists(item) for key, item in value.items()}
    return [_with_lists(item) for item in value] if isinstance(value, (list, tuple)) else value


def _count_recompiles(utils: object) -> int:
    # Maps every piece of compiled code to the code it was made from: a second entry for one origin
    # is a recompilation. Every torch 2 has it, whereas CompilationMetrics came and changed later.
    origins = list(utils.orig_code_map.values.values())  # type: ignore[attr-defined]
    return len(origins) - len({id(origin) for origin in origins})


def _sum_compile_seconds(utils: object) -> float:
    # torch 2.0 calls the table compilation_metrics; a whole frame's entry begins with _compile.
    table = getattr(utils, "compilation_time_metrics", None)
    if table is None:
        table = utils.compilation_metrics  # type: ignore[attr-defined]
    return float(
        sum(
            sum(times)
            for name, times in table.items()
            if name.startswith("_compile") or name in _backward_entries()
        )
    )


def _backward_entries() -> tuple[str, ...]:
    # Backward is compiled when it first runs, outside of any frame; newer ones name all of that.
    if torch_version() >= (2, 6):
        return ("backward._backward_impl",)
    return ("compile_fx.<locals>.bw_compiler",)
