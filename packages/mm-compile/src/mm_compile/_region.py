"""A module that runs compiled code, or eagerly where that cannot be."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch import nn

from ._agreement import Agreement
from ._code import eager_method, own_method
from ._errors import TorchVersionError
from ._failure import Failure, failure_of_dynamo, not_compiled, not_repeatable
from ._inputs import describe_inputs
from ._recompile_budget import count_compilation
from ._surroundings import (
    gradient_buckets,
    guarded_hooks,
    is_in_backward,
    refuse_checkpointing,
)
from ._torch import dynamo_errors, is_of_dynamo, is_users_own_error
from ._unit import Kind, Mode, Unit, mode_of

if TYPE_CHECKING:  # both are made of regions
    from ._verify._verifier import Verifier
    from ._warm_up._warm_up import WarmUp

_logger = logging.getLogger(__name__)

_is_compiling: Callable[[], bool] = getattr(
    getattr(torch, "compiler", None), "is_compiling", lambda: False
)
# Methods that may run a second time: they do not step an optimizer.
_REPEATABLE = ("forward", "loss", "predict")


class Region:
    """One method of one module, compiled; it lies on that module under the method's name.

    There it is called between the module's hooks, whoever registered them: wrappers of the module
    (data parallel, sharding, checkpointing) see no difference. A copy of the module holds the
    class's own method in its place, and no trace of this package.

    Attributes:
        name: The module's name in the model; empty for the model itself.
        attribute: The method's name.
        index: Its place among the regions of the model.
        label: The names, and the class, for messages.
        kind: The regions it shares compiled code with.
        failure: Why it runs eagerly; None while it is compiled.
        held_back: Why it is not compiled now, though nothing failed; else None.
        warm_up: Told when a call begins, by the model's first region.
        verifier: Compares the first calls with eager ones.
    """

    def __init__(
        self, module: nn.Module, attribute: str, name: str, kind: Kind, index: int = 0
    ) -> None:
        self._module = ref(module)
        self._previous = vars(module).get(attribute)
        self._eager = own_method(module, attribute)
        self.name = name
        self.attribute = attribute
        self.index = index
        method = "" if attribute == "forward" else f".{attribute}"
        self.label = f"{name or 'the model'}{method} ({type(module).__name__})"
        self.kind = kind
        self.failure: Failure | None = None
        self.agreement: Agreement | None = None
        self.reads_agreement = False
        self.held_back: str | None = None
        self.warm_up: WarmUp | None = None
        self.verifier: Verifier | None = None
        self._errors: tuple[type[Exception], ...] = (*dynamo_errors(), TorchVersionError)
        # What the last forward ran; None is the eager method.
        self._last: tuple[Mode, Unit | None] | None = None
        self._is_installed = False

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The eager method, where ``inspect.signature`` looks for it."""
        return self._eager or eager_method(self.module, self.attribute)

    @property
    def module(self) -> nn.Module:
        """The module it lies on."""
        module = self._module()
        assert module is not None  # it holds this object
        return module

    @property
    def is_active(self) -> bool:
        """Whether it stands in its module's place."""
        return self._is_installed

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _is_compiling():  # somebody compiles a whole around it
            return self.__wrapped__(*args, **kwargs)
        mode = mode_of(self.module)
        if is_in_backward() and self._last is not None and self._last[0][:2] == mode[:2]:
            # Checkpointing: what the forward saved has to be made again, exactly as it was.
            mode, unit = self._last
        else:
            unit = self._choose(mode)
            if unit is not None and self.verifier is not None:
                unit = self._verified(unit, mode, args, kwargs)
        if unit is None:
            return self.__wrapped__(*args, **kwargs)
        return self._run_compiled(unit, mode, args, kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        # Also for copy.deepcopy. The copy must compute with its own parameters.
        if self._eager is not None:
            return copy.copy, (self._eager,)
        return getattr, (self._module(), self.attribute)

    def install(self) -> None:
        """Put it in its module's place."""
        setattr(self._module(), self.attribute, self)
        self._is_installed = True

    def remove(self) -> None:
        """Take it out again, unless somebody replaced it since; theirs stays then."""
        self._is_installed = False
        module = self._module()
        if module is None or vars(module).get(self.attribute) is not self:
            return
        delattr(module, self.attribute)
        if self._previous is not None:
            setattr(module, self.attribute, self._previous)

    def run_eagerly_from_now_on(self, failure: Failure) -> None:
        """Give up compiled code, and say why."""
        if self.failure is None:
            self.failure = failure
            _logger.warning("compile: %s runs eagerly from now on: %s", self.label, failure)

    def _choose(self, mode: Mode) -> Unit | None:
        if self.reads_agreement and self.agreement is not None:
            self.agreement.read()
        if self.warm_up is not None:
            self.warm_up.begin_call()
        if self.failure is None and self.kind.excess is not None:
            # Else each of many blocks would compile once more before it gave up.
            self._give_up(self.kind.excess)
        is_eager = self.failure is not None or self.held_back is not None or not self._is_installed
        unit = None if is_eager else self._unit(mode)
        self._last = (mode, unit)
        return unit

    def _verified(
        self, unit: Unit, mode: Mode, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Unit | None:
        assert self.verifier is not None
        failure = self.verifier.check(self, partial(self._run_compiled, unit, mode), args, kwargs)
        if failure is not None:
            self._give_up(failure)
        if self.failure is not None:  # it may also have failed to compile
            self._last = (mode, None)
            return None
        return unit

    def _run_compiled(
        self, unit: Unit, mode: Mode, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        backend = unit.backend
        num_graphs, num_runs = backend.num_graphs, backend.num_runs
        num_breaks = len(backend.break_reasons)
        is_newcomer = self.name not in unit.callers
        unit.callers.add(self.name)
        try:
            if is_newcomer:
                refuse_checkpointing()
            with gradient_buckets(is_whole=not self.name), guarded_hooks():
                outputs = unit.run(self._module(), *args, **kwargs)
        except Exception as error:
            if not is_of_dynamo(error, self._errors):
                raise
            failed = error
        else:
            unit.note_breaks(num_breaks)
            if is_newcomer and not backend.num_graphs:
                _logger.warning(
                    "compile: %s has no graph: dynamo captured nothing, and it runs as it is.",
                    self.label,
                )
            if backend.failure is not None:
                failure, backend.failure = backend.failure, None
                self._give_up(failure)
            elif backend.num_graphs != num_graphs:
                inputs = describe_inputs(self.__wrapped__, args, kwargs)
                excess = count_compilation(
                    self.kind, unit, mode, inputs, self.label, is_newcomer=is_newcomer
                )
                if excess is not None:
                    self._give_up(excess)
            return outputs
        return self._recover(failed, backend.num_runs != num_runs, args, kwargs)

    def _unit(self, mode: Mode) -> Unit:
        unit = self.kind.units.get(mode)
        if unit is not None and self.name in unit.callers:
            return unit
        self.kind = self.kind.for_newcomer()
        return self.kind.unit(mode)

    def _recover(
        self,
        error: Exception,
        has_partly_run: bool,  # noqa: FBT001 - private
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        config = self.kind.config
        if config.on_error == "raise":
            if is_users_own_error(error) and self.attribute in _REPEATABLE:
                # Shapes that do not fit, usually: eager code says so in the user's own lines.
                self.__wrapped__(*args, **kwargs)
            raise not_compiled(self.label, error) from error
        if has_partly_run and self.attribute not in _REPEATABLE:
            raise not_repeatable(self.label, error) from error
        # If this raises, the error is the user's and not the compiler's.
        outputs = self.__wrapped__(*args, **kwargs)
        self._last = None
        self._give_up(failure_of_dynamo(error))
        return outputs

    def _give_up(self, failure: Failure) -> None:
        if self.failure is None and self.agreement is not None:
            self.agreement.announce(self.index, failure)
        self.run_eagerly_from_now_on(failure)
