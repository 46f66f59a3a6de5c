"""What ``compile_model`` hands back: the way to undo, and the report."""

from collections.abc import Callable

from ._config import CompileConfig
from ._report import CompileReport, DynamoCounts
from ._torch import describe_backend


class CompileHandle:
    """A compiled model's way back, and what compiling it did.

    Made by :func:`mm_compile.compile_model`. Where the config asked for nothing, ``enabled`` is
    false, ``undo`` does nothing and the report counts nothing.
    """

    def __init__(self, config: CompileConfig, restore: Callable[[], None] | None) -> None:
        self._config = config
        self._restore = restore
        self._before = DynamoCounts.now() if restore else DynamoCounts()

    @property
    def enabled(self) -> bool:
        """Whether the model is compiled: false if nothing was asked for, and after ``undo``."""
        return self._restore is not None

    def undo(self) -> None:
        """Make the model run eagerly again, as it was before; a second call does nothing."""
        if self._restore is not None:
            self._restore()
            self._restore = None

    def report(self) -> CompileReport:
        """Count graphs, graph breaks, recompilations and seconds since the model was compiled."""
        counts = DynamoCounts.now().since(self._before) if self._config.enabled else DynamoCounts()
        return CompileReport(
            target=self._config.target,
            backend=describe_backend(self._config.keywords),
            mode=self._config.keywords.get("mode"),
            graphs=counts.graphs,
            graph_breaks=counts.graph_breaks,
            recompiles=counts.recompiles,
            compile_seconds=counts.compile_seconds,
        )
