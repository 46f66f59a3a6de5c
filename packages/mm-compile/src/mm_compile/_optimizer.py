"""The optimizer's step, compiled."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from torch.optim import Optimizer

from . import _torch_private as torch_private
from ._backend import GuardedBackend
from ._config import CompileConfig
from ._errors import AlreadyCompiledError, CompileError
from ._failure import Failure, GraphBreak, add_breaks, failure_of_dynamo, passing_error
from ._method import copy_function
from ._report import RegionStatus

_logger = logging.getLogger(__name__)

# Attribute of an optimizer; optimizers are pickled without it.
_MARK = "_mm_compile_step"


class CompiledStep:
    """``optimizer.step``, compiled, installed on the optimizer under that name.

    Dynamo compiles a number into the code, and would recompile whenever a scheduler changes the
    learning rate. So the compiled step gets a tensor in its place, and everybody else the number.
    """

    def __init__(self, optimizer: Optimizer, config: CompileConfig) -> None:
        # The step itself does not tell: a scheduler may have wrapped it since.
        installed = vars(optimizer).get(_MARK)
        self._name = f"the step of {type(optimizer).__name__}"
        if installed is not None and not installed.is_removed:
            raise AlreadyCompiledError(
                f"{self._name} is compiled already. Call undo() on the handle that compiled it "
                "before compiling it again."
            )
        self._optimizer = optimizer
        self._bound = MethodType(self, optimizer)
        self.is_removed = False
        self._previous: Callable[..., Any] | None = vars(optimizer).get("step")
        self._eager: Callable[..., Any] = optimizer.step
        if hasattr(self._eager, "_wrapped_by_lr_sched"):
            # Otherwise an earlier scheduler warns that its wrapper was lost; it is called inside.
            self._wrapped_by_lr_sched = True
        self.backend = GuardedBackend(
            config.keywords, config.code_cache, catches=config.on_error == "eager"
        )
        eager = self._eager

        def call() -> None:
            eager()

        self._run = torch.compile(copy_function(call), backend=self.backend)  # type: ignore[arg-type]
        self._rates: list[torch.Tensor] = []
        self.failure: Failure | None = None
        self._on_error = config.on_error
        self._num_recompiles = 0
        self.breaks: list[GraphBreak] = []

    def __call__(self, _optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        # A closure runs the whole model.
        if self.is_removed or self.failure is not None or closure is not None:
            return self._eager(closure)
        backend = self.backend
        num_graphs, num_breaks = backend.num_graphs, len(backend.break_reasons)
        try:
            with _rates_as_tensors(self._optimizer, self._rates):
                outputs = self._run()
        except Exception as error:
            if not torch_private.is_of_dynamo(error):
                raise
            if (passing := passing_error(error)) is not None:
                raise passing from None
            failure: Failure | None = failure_of_dynamo(error)
            # A step of which a graph may have run cannot be run again eagerly.
            if self._on_error == "raise" or backend.num_graphs:
                raise CompileError(
                    f"compile: {self._name} did not compile: {failure}. Set optimizer=False, "
                    'or on_error="eager" to run what the backend refuses uncompiled.'
                ) from error
            outputs = self._eager()
        else:
            failure = backend.failure
        self._num_recompiles += 0 < num_graphs < backend.num_graphs
        add_breaks(self.breaks, backend.break_reasons[num_breaks:])
        if failure is not None:
            self.failure = failure
            _logger.warning("compile: %s runs eagerly from now on: %s", self._name, failure)
        return outputs

    def __get__(self, optimizer: Optimizer, _type: object = None) -> MethodType:
        # torch's schedulers take the function out of the bound step, and bind it again.
        return MethodType(self, optimizer)

    def install(self) -> None:
        """Replace the optimizer's step."""
        setattr(self._optimizer, _MARK, self)
        self._optimizer.step = self._bound  # type: ignore[method-assign]

    def remove(self) -> None:
        """Restore the step; inside a scheduler's later wrapper it runs eagerly instead."""
        self.is_removed = True
        vars(self._optimizer).pop(_MARK, None)
        if vars(self._optimizer).get("step") is not self._bound:
            return
        del self._optimizer.step
        if self._previous is not None:
            self._optimizer.step = self._previous  # type: ignore[method-assign]

    def status(self) -> RegionStatus:
        """Return its status."""
        return RegionStatus(
            name="",
            target="step",
            is_compiled=not self.is_removed and self.failure is None,
            failure=None if self.failure is None else str(self.failure),
            recompiles=self._num_recompiles,
            graphs=self.backend.num_graphs,
            label=self._name,
            graph_breaks=tuple(self.breaks),
        )


@contextmanager
def _rates_as_tensors(optimizer: Optimizer, tensors: list[torch.Tensor]) -> Iterator[None]:
    """Put tensors in the place of the learning rates.

    Adam and AdamW refuse a tensor with ``foreach=True``: there, ``foreach`` is left to torch.
    """
    groups = optimizer.param_groups
    tensors += [torch.zeros(()) for _ in groups[len(tensors) :]]
    before = [(group["lr"], group.get("foreach")) for group in groups]
    for group, tensor in zip(groups, tensors, strict=False):
        if isinstance(group["lr"], float):
            group["lr"] = tensor.fill_(group["lr"])
            if group.get("foreach") and group.get("capturable") is False:
                group["foreach"] = None
    try:
        yield
    finally:
        for group, (rate, foreach) in zip(groups, before, strict=True):
            group["lr"] = rate
            if "foreach" in group:
                group["foreach"] = foreach
