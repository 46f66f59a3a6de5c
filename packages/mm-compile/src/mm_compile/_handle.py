"""What ``compile_model`` hands back: the way to undo, and the report."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch.optim import Optimizer

from ._config import CompileConfig
from ._optimizer import CompiledStep
from ._region import Region
from ._report import CompileReport, DynamoCounts
from ._torch import describe_backend


@dataclass(frozen=True)
class RegionStatus:
    """How a compiled part of a model does.

    Attributes:
        name: Its dotted name in the model; empty for the model itself.
        target: The method that is compiled.
        is_compiled: Whether calls run compiled code.
        failure: Why they do not, with the user's ``file:line`` where known; else None.
        recompiles: How often its code was compiled again for other inputs.
        graphs: Graphs captured of its code. Regions that share code share these two numbers.
    """

    name: str
    target: str
    is_compiled: bool
    failure: str | None
    recompiles: int
    graphs: int


class CompileHandle:
    """A compiled model's way back, and what compiling it did.

    Made by :func:`mm_compile.compile_model`. Where the config asked for nothing, ``enabled`` is
    false, ``undo`` does nothing and the report counts nothing.
    """

    def __init__(self, config: CompileConfig, regions: Sequence[Region]) -> None:
        self._config = config
        self._regions = list(regions)
        self._steps: list[CompiledStep] = []
        self._enabled = bool(regions)
        self._before = DynamoCounts.now() if regions else DynamoCounts()

    @property
    def enabled(self) -> bool:
        """Whether the model is compiled: false if nothing was asked for, and after ``undo``."""
        return self._enabled

    @property
    def regions(self) -> tuple[RegionStatus, ...]:
        """What was compiled, in the model's order, and how each part does now."""
        return tuple(map(_status_of, self._regions))

    def compile_optimizer(self, optimizer: Optimizer) -> None:
        """Compile ``optimizer.step`` in place, if the config says ``optimizer=True``.

        ``undo`` undoes it too. A step with a closure runs eagerly.

        Args:
            optimizer: The optimizer, once its parameters are final.

        Raises:
            AlreadyCompiledError: If its step is compiled.
        """
        if self._enabled and self._config.optimizer:
            step = CompiledStep(optimizer, self._config)
            step.install()
            self._steps.append(step)

    def undo(self) -> None:
        """Make the model run eagerly again, as it was before; a second call does nothing."""
        for region in self._regions:
            region.remove()
        for step in self._steps:
            step.remove()
        self._enabled = False

    def report(self) -> CompileReport:
        """Count graphs, graph breaks, recompilations and seconds since the model was compiled."""
        counts = DynamoCounts.now().since(self._before) if self._config.enabled else DynamoCounts()
        return CompileReport(
            target=", ".join(self._config.target),
            backend=describe_backend(self._config.keywords),
            mode=self._config.keywords.get("mode"),
            graphs=counts.graphs,
            graph_breaks=counts.graph_breaks,
            recompiles=counts.recompiles,
            compile_seconds=counts.compile_seconds,
        )


def _status_of(region: Region) -> RegionStatus:
    return RegionStatus(
        name=region.name,
        target=region.attribute,
        is_compiled=region.is_active and region.failure is None,
        failure=None if region.failure is None else str(region.failure),
        recompiles=region.kind.count_recompiles(),
        graphs=region.kind.count_graphs(),
    )
