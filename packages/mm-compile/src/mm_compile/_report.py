"""What compiling did: a difference of dynamo's own counters."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CompileReport:
    """What was compiled since a model was handed to ``compile_model``.

    Dynamo counts for the whole process, so two models that compile at the same time share the
    numbers. Nothing is compiled before the first call of the model.

    Attributes:
        target: ``"forward"`` or ``"train_step"``.
        backend: The backend's name.
        mode: The mode, or None where the config names none.
        graphs: Graphs captured, those of recompilations included.
        graph_breaks: Places where capturing stopped; counted again by every recompilation.
        recompiles: How often code that was compiled before was compiled for other inputs.
        compile_seconds: Time spent in the compiler, in seconds.
    """

    target: str
    backend: str
    mode: str | None
    graphs: int
    graph_breaks: int
    recompiles: int
    compile_seconds: float

    def __str__(self) -> str:
        mode = f" (mode {self.mode})" if self.mode else ""
        return (
            f"{self.target} by {self.backend}{mode}: {self.graphs} graphs, "
            f"{self.graph_breaks} graph breaks, {self.recompiles} recompiles, "
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
    return float(sum(sum(times) for name, times in table.items() if name.startswith("_compile")))
