"""The optimizer's step, compiled: an opt-in beside the model."""

import logging
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch.optim import Optimizer

from ._backend import GuardedBackend
from ._code import copied
from ._config import CompileConfig
from ._errors import AlreadyCompiledError, CompileError
from ._failure import Failure, failure_of_dynamo, passing_error
from ._receipt._breaks import GraphBreak, add_breaks
from ._receipt._regions import RegionStatus
from ._torch import dynamo_errors, is_of_dynamo

_logger = logging.getLogger(__name__)

# Where an optimizer remembers its compiled step; optimizers are pickled without such attributes.
_MARK = "_mm_compile_step"


class CompiledStep:
    """``optimizer.step``, compiled; it lies on the optimizer under that name.

    Dynamo compiles a number into the code, and would compile anew whenever a scheduler changes the
    learning rate. The compiled step therefore sees a tensor in its place, and everybody else the
    number.

    Attributes:
        failure: Why it runs eagerly, or why its last call was refused; None while it is compiled.
        is_removed: Whether it was undone.
    """

    def __init__(self, optimizer: Optimizer, config: CompileConfig) -> None:
        if _is_compiled(optimizer):
            raise AlreadyCompiledError(
                f"the step of {type(optimizer).__name__} is compiled already. Call undo() on the "
                "handle that compiled it before compiling it again."
            )
        self._optimizer = optimizer
        self._bound = MethodType(self, optimizer)
        self.is_removed = False
        self._previous: Callable[..., Any] | None = vars(optimizer).get("step")
        self._eager: Callable[..., Any] = optimizer.step
        if hasattr(self._eager, "_wrapped_by_lr_sched"):
            # Else a scheduler made earlier warns that its wrapper was lost; it is called inside.
            self._wrapped_by_lr_sched = True
        self._on_error = config.on_error
        self._backend = GuardedBackend(
            config.keywords,
            dynamic=config.keywords.get("dynamic"),
            catches=config.on_error == "eager",
            counts_runs=True,
            code_cache=config.code_cache,
        )
        self._run = torch.compile(copied(_make_call(self._eager)), backend=self._backend)
        self._errors = dynamo_errors()
        self._rates: list[torch.Tensor] = []
        self.failure: Failure | None = None
        self._is_given_up = False
        self._num_recompiles = 0
        self._breaks: list[GraphBreak] = []

    def __call__(self, _optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        # A closure runs the whole model, which is compiled on its own.
        if self.is_removed or self._is_given_up or closure is not None:
            return self._eager(closure)
        backend = self._backend
        num_runs, num_graphs = backend.num_runs, backend.num_graphs
        num_breaks = len(backend.break_reasons)
        try:
            with _RatesAsTensors(self._optimizer, self._rates):
                outputs = self._run()
        except Exception as error:
            if not is_of_dynamo(error, self._errors):
                raise
            if (passing := passing_error(error)) is not None:
                raise passing from None
            failed = error
        else:
            self.failure = None
            self._num_recompiles += 0 < num_graphs < backend.num_graphs
            add_breaks(self._breaks, backend.break_reasons[num_breaks:])
            if backend.failure is not None:
                self._give_up(backend.failure)
            return outputs
        return self._recover(failed, has_partly_run=backend.num_runs != num_runs)

    def __get__(self, optimizer: Optimizer, _type: object = None) -> MethodType:
        # torch's schedulers take the function out of the bound step, and bind it again.
        return MethodType(self, optimizer)

    def install(self) -> None:
        """Put it in the optimizer's place."""
        setattr(self._optimizer, _MARK, self)
        self._optimizer.step = self._bound  # type: ignore[method-assign]

    def remove(self) -> None:
        """Take it out again; where a scheduler has wrapped it since, it runs eagerly there."""
        self.is_removed = True
        vars(self._optimizer).pop(_MARK, None)
        if vars(self._optimizer).get("step") is not self._bound:
            return
        del self._optimizer.step
        if self._previous is not None:
            self._optimizer.step = self._previous  # type: ignore[method-assign]

    def status(self) -> RegionStatus:
        """Describe it as a region is described."""
        return RegionStatus(
            name="",
            target="step",
            is_compiled=not self.is_removed and self.failure is None,
            failure=None if self.failure is None else str(self.failure),
            recompiles=self._num_recompiles,
            graphs=self._backend.num_graphs,
            label=f"the step of {type(self._optimizer).__name__}",
            graph_breaks=tuple(self._breaks),
        )

    def _recover(self, error: Exception, *, has_partly_run: bool) -> Any:
        self.failure = failure = failure_of_dynamo(error)
        name = type(self._optimizer).__name__
        if self._on_error == "raise" or has_partly_run:
            raise CompileError(
                f"compile: the step of {name} did not compile: {failure}. Set optimizer=False"
                + ("." if has_partly_run else ', or on_error="eager" to run it uncompiled.')
            ) from error
        outputs = self._eager()
        self._give_up(failure)
        return outputs

    def _give_up(self, failure: Failure) -> None:
        self.failure, self._is_given_up = failure, True
        name = type(self._optimizer).__name__
        _logger.warning("compile: the step of %s runs eagerly from now on: %s", name, failure)


class _RatesAsTensors:
    """Holds tensors in place of the learning rates while it is entered.

    Adam and AdamW refuse a tensor beside ``foreach=True``: there, ``foreach`` is left to torch, and
    the compiler fuses as much.
    """

    def __init__(self, optimizer: Optimizer, tensors: list[torch.Tensor]) -> None:
        self._groups = optimizer.param_groups
        self._tensors = tensors
        self._own: list[tuple[Any, ...]] = []

    def __enter__(self) -> None:
        for _ in range(len(self._tensors), len(self._groups)):
            self._tensors.append(torch.zeros(()))
        for group, tensor in zip(self._groups, self._tensors, strict=False):
            self._own.append((group["lr"], group.get("foreach")))
            if isinstance(group["lr"], float):
                group["lr"] = tensor.fill_(group["lr"])
                if group.get("foreach") and group.get("capturable") is False:
                    group["foreach"] = None

    def __exit__(self, *_: object) -> None:
        for group, (number, foreach) in zip(self._groups, self._own, strict=True):
            group["lr"] = number
            if "foreach" in group:
                group["foreach"] = foreach


def _is_compiled(optimizer: Optimizer) -> bool:
    # Not asked of the step itself: a scheduler may have wrapped it since, and not say so.
    step = vars(optimizer).get(_MARK)
    return step is not None and not step.is_removed


def _make_call(step: Callable[..., Any]) -> Any:
    def call() -> Any:
        return step()

    return call
