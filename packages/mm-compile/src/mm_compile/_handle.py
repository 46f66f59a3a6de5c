"""Handle of a compiled model: undo, and the report."""

import logging
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from torch.optim import Optimizer

from ._config import CompileConfig
from ._errors import ConfigError, NotAModelError
from ._optimizer import CompiledStep
from ._region import Region
from ._report import CompileReport, RegionStatus, status_of
from ._torch import describe_backend
from ._verify import Verifier
from ._warm_up import WarmUp

_logger = logging.getLogger(__name__)
_IN_PLACE = (
    "compile_model compiles the model in place and returns this handle, which is no model: use "
    "the model itself, without `model = ` before compile_model(model, ...)."
)


class CompileHandle:
    """Undoes compiling a model, and reports what it did.

    Made by :func:`mm_compile.compile_model`. Where the config asked for nothing, ``enabled`` is
    false, ``undo`` does nothing and the report counts nothing.

    Attributes:
        enabled: Whether the model is compiled: false if nothing was asked for, and after ``undo``.
    """

    def __init__(
        self,
        config: CompileConfig,
        regions: Sequence[Region],
        warm_up: WarmUp | None = None,
        verifier: Verifier | None = None,
        on_undo: Sequence[Callable[[], None]] = (),
    ) -> None:
        self._config = config
        self._regions = list(regions)
        self._steps: list[CompiledStep] = []
        self.enabled = bool(regions)
        self._verifier = verifier
        self._on_undo = on_undo
        self._warm_up = warm_up
        if warm_up is not None:
            warm_up.on_done = lambda: _logger.info("compile: %s", self.report())

    def __call__(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise NotAModelError(f"CompileHandle cannot be called. {_IN_PLACE}")

    def __getattr__(self, name: str) -> NoReturn:
        raise NotAModelError(f"CompileHandle has no {name!r}. {_IN_PLACE}")

    @property
    def regions(self) -> tuple[RegionStatus, ...]:
        """The compiled parts, in the model's order, with their present status."""
        results = {} if self._verifier is None else self._verifier.results
        return tuple(status_of(region, results.get(region)) for region in self._regions)

    @property
    def is_warm(self) -> bool:
        """Whether training steps have been timed and ``"auto"`` has decided; it stays true.

        False where nothing is compiled.
        """
        return self._warm_up is not None and self._warm_up.is_done

    def expect_steps(self, num_steps: int) -> None:
        """Set how many training calls of the model ``"auto"`` expects.

        Otherwise it expects as many as there have been. Does nothing where nothing is compiled.

        Args:
            num_steps: Calls of the model in training, micro-batches counted.

        Raises:
            ConfigError: If it is not a finite number, or negative.

        Example:
            >>> handle = compile_model(model, "auto")
            >>> handle.expect_steps(num_epochs * len(loader))
        """
        if not (isinstance(num_steps, (int, float)) and 0 <= num_steps < float("inf")):
            raise ConfigError(f"expect_steps got {num_steps!r}; it takes a number, 0 or more.")
        if self._warm_up is not None:
            self._warm_up.expect(int(num_steps))

    def compile_optimizer(self, optimizer: Optimizer) -> None:
        """Compile ``optimizer.step`` in place, if the config says ``optimizer=True``.

        ``undo`` undoes it too. A step with a closure runs eagerly. Without ``optimizer=True`` the
        step stays eager, which is logged.

        Args:
            optimizer: The optimizer, once its parameters are final.

        Raises:
            AlreadyCompiledError: If its step is compiled.
        """
        if self.enabled and not self._config.optimizer:
            _logger.info(
                "compile: the step of %s is left eager; optimizer=True in the config compiles it.",
                type(optimizer).__name__,
            )
        elif self.enabled:
            step = CompiledStep(optimizer, self._config)
            step.install()
            self._steps.append(step)

    def undo(self) -> None:
        """Restore the eager model; a second call does nothing."""
        if self._warm_up is not None:
            self._warm_up.stop()
        removes = [part.remove for part in self._regions] + [step.remove for step in self._steps]
        for undo in (*removes, *self._on_undo):
            undo()
        self.enabled = False

    def report(self) -> CompileReport:
        """Return what was compiled since ``compile_model``, its cost and its gain.

        Does not wait for a device: what is not known yet is left out.
        """
        regions = self.regions
        optimizers = tuple(step.status() for step in self._steps)
        kinds = list({id(region.kind): region.kind for region in self._regions}.values())
        codes = [code for kind in kinds for code in kind.codes.values()]
        backends = [backend for kind in kinds for backend in kind.backends]
        backends += [step.backend for step in self._steps]
        compile_seconds = sum(backend.seconds for backend in backends)
        return CompileReport(
            target=", ".join(self._config.target),
            backend=describe_backend(self._config.keywords),
            mode=self._config.keywords.get("mode"),
            graphs=sum(backend.num_graphs for backend in backends),
            graph_breaks=sum(len(code.breaks) for code in codes)
            + sum(len(step.breaks) for step in self._steps),
            recompiles=sum(kind.count_recompiles() for kind in kinds)
            + sum(step.recompiles for step in optimizers),
            compile_seconds=compile_seconds,
            regions=regions,
            steps=None if self._warm_up is None else self._warm_up.step_times(compile_seconds),
            decision=None if self._warm_up is None else self._warm_up.message,
            optimizers=optimizers,
        )
