"""A module that runs compiled code, or eagerly where that cannot be."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from ._agreement import Agreement
from ._errors import TorchVersionError
from ._failure import (
    Failure,
    failure_of_dynamo,
    not_compiled,
    not_repeatable,
    passing_error,
)
from ._garbage import rare_collections
from ._outermost import OutermostCall
from ._recompile_budget import Call, look_at
from ._slot import MethodSlot
from ._surroundings import Surroundings, is_in_backward, refuse_checkpointing
from ._torch import dynamo_errors, is_of_dynamo, is_users_own_error
from ._unit import Kind, Mode, Unit, mode_of

# Calls what it is given on copies of a call's inputs, and says what deviates.
Check = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Failure | None]

_logger = logging.getLogger(__name__)

_is_compiling: Callable[[], bool] = getattr(
    getattr(torch, "compiler", None), "is_compiling", lambda: False
)
# Methods that may run a second time: they do not step an optimizer.
_REPEATABLE = ("forward", "loss", "predict")


class Region:
    """One method of one module, compiled; it lies on that module under the method's name.

    There it is called between the module's hooks, whoever registered them: wrappers of the module
    (data parallel, sharding, checkpointing) see no difference.

    Attributes:
        name: The module's name in the model; empty for the model itself.
        attribute: The method's name.
        index: Its place among the regions of the model.
        label: The names, and the class, for messages.
        kind: The regions it shares compiled code with.
        failure: Why it runs eagerly; None while it is compiled.
        raised: What its last call was refused for under ``on_error="raise"``; else None.
        held_back: Why it is not compiled now, though nothing failed; else None.
        outermost: Where the calls of the whole model are told, if this one's may be such.
        check: Compares the first calls with eager ones.
    """

    def __init__(
        self, module: nn.Module, attribute: str, name: str, kind: Kind, index: int = 0
    ) -> None:
        self._slot = MethodSlot(module, attribute)
        self._module = self._slot.of
        self._surroundings = Surroundings(is_whole=not name)
        self.name = name
        self.attribute = attribute
        self.index = index
        method = "" if attribute == "forward" else f".{attribute}"
        self.label = f"{name or 'the model'}{method} ({type(module).__name__})"
        self.kind = kind
        self.failure: Failure | None = None
        self.raised: Failure | None = None
        self.agreement: Agreement | None = None
        self.held_back: str | None = None
        self.outermost: OutermostCall | None = None
        self.check: Check | None = None
        self._errors: tuple[type[Exception], ...] = (*dynamo_errors(), TorchVersionError)
        # What the last forward ran; None is the eager method.
        self._last: tuple[Mode, Unit | None] | None = None
        self._is_installed = False

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The eager method, where ``inspect.signature`` looks for it."""
        return self._slot.eager

    @property
    def module(self) -> nn.Module:
        """The module it lies on."""
        return self._slot.module

    @property
    def is_active(self) -> bool:
        """Whether it stands in its module's place."""
        return self._is_installed

    @property
    def fallback(self) -> str | None:
        """Why its calls run no compiled code though they were to; None while they do."""
        if (failure := self.failure or self.raised) is not None:
            return str(failure)
        ran = [unit for unit in self.kind.units.values() if self.name in unit.callers]
        if ran and all(unit.is_graphless for unit in ran):
            return "dynamo captured no graph of it, and it runs as it is"
        return None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _is_compiling():  # somebody compiles a whole around it
            return self.__wrapped__(*args, **kwargs)
        outermost = self.outermost
        if outermost is not None and not outermost.is_running:
            return outermost.around(self._call, args, kwargs)
        return self._call(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._slot.reduced()

    def install(self) -> None:
        """Put it in its module's place."""
        self._slot.fill(self)
        self._is_installed = True

    def remove(self) -> None:
        """Take it out again, unless somebody replaced it since; theirs stays then."""
        self._is_installed = False
        self._slot.clear(self)

    def run_eagerly_from_now_on(self, failure: Failure) -> None:
        """Give up compiled code, and say why."""
        if self.failure is None:
            self.failure = failure
            _logger.warning("compile: %s runs eagerly from now on: %s", self.label, failure)

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        mode = mode_of(self._module())
        if is_in_backward() and self._last is not None and self._last[0][:2] == mode[:2]:
            # Checkpointing: what the forward saved has to be made again, exactly as it was.
            mode, unit = self._last
        else:
            unit = self._choose(mode)
            if unit is not None and self.check is not None:
                unit = self._verified(unit, mode, args, kwargs)
        if unit is None:
            return self.__wrapped__(*args, **kwargs)
        return self._run_compiled(unit, mode, args, kwargs)

    def _choose(self, mode: Mode) -> Unit | None:
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
        assert self.check is not None
        failure = self.check(partial(self._run_compiled, unit, mode), args, kwargs)
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
        before = (backend.num_graphs, len(backend.break_reasons))
        num_runs = backend.num_runs
        is_newcomer = self.name not in unit.callers
        surroundings = self._surroundings.enter()
        try:
            if is_newcomer:
                outputs = self._run_first(unit, args, kwargs)
            else:
                outputs = unit.run(self._module(), *args, **kwargs)
        except Exception as error:
            if not is_of_dynamo(error, self._errors):
                raise
            if (passing := passing_error(error)) is not None:
                raise passing from None
            failed = error
        else:
            self.raised = None
            is_known = before == (backend.num_graphs, len(backend.break_reasons))
            if is_newcomer or not is_known or backend.failure is not None:
                call = Call(mode, self.label, args, kwargs, is_newcomer=is_newcomer)
                failure = look_at(self.kind, unit, call, self.__wrapped__, before)
                if failure is not None:
                    self._give_up(failure)
            return outputs
        finally:
            self._surroundings.leave(surroundings)
            if unit.hook_guards.is_begun:
                unit.hook_guards.end()
        try:
            return self._recover(failed, backend.num_runs != num_runs, args, kwargs)
        finally:
            del failed  # its traceback holds this frame, and that the inputs

    @rare_collections
    def _run_first(self, unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the code for the first time, in which it is compiled unless other regions had it."""
        unit.callers.add(self.name)
        refuse_checkpointing()
        return unit.run(self._module(), *args, **kwargs)

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
            self.raised = failure_of_dynamo(error)
            raise not_compiled(self.label, self.attribute, error) from error
        if has_partly_run and self.attribute not in _REPEATABLE:
            self.raised = failure_of_dynamo(error)
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
