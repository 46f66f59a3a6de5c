"""One method of one module, compiled, with its fallback to eager code."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from torch import nn

from . import _torch_private as torch_private
from ._compiled_code import CompiledCode, Mode, RegionKind, mode_of
from ._config import REPEATABLE
from ._errors import CompileError
from ._failure import Failure, failure_of_dynamo, passing_error
from ._method import MethodSlot
from ._model_call import ModelCall, is_compiling

# Compares a call of compiled code with eager code, and returns what deviates.
Check = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Failure | None]

_logger = logging.getLogger(__name__)


class Region:
    """A compiled method, installed on its module under the method's name.

    The module's hooks run around it, so wrappers (data parallel, sharding, checkpointing) see no
    difference.

    Attributes:
        name: The module's name in the model; empty for the model itself.
        kind: The regions that it shares code with.
        failure: Why it runs eagerly; None while it is compiled.
        held_back: Why it is not compiled now, although nothing failed; else None.
        model_call: Callbacks of the whole model, if a call of the region may be a call of it.
        check: Compares the first calls with eager ones.
    """

    def __init__(self, module: nn.Module, attribute: str, name: str, kind: RegionKind) -> None:
        self._slot = MethodSlot(module, attribute)
        self._module = self._slot.of
        self.name = name
        self.attribute = attribute
        method = "" if attribute == "forward" else f".{attribute}"
        self.label = f"{name or 'the model'}{method} ({type(module).__name__})"
        self.kind = kind
        self.failure: Failure | None = None
        self.held_back: str | None = None
        self.model_call: ModelCall | None = None
        self.check: Check | None = None
        # Mode and code of the last forward; None is eager code.
        self._last: tuple[Mode, CompiledCode | None] | None = None
        self.is_active = False

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The eager method, where ``inspect.signature`` looks for it."""
        return self._slot.eager

    @property
    def module(self) -> nn.Module:
        """The module it is installed on."""
        return self._slot.module

    @property
    def fallback(self) -> str | None:
        """Why its calls run no compiled code although they should; None while they do."""
        if self.failure is not None:
            return str(self.failure)
        ran = [code for code in self.kind.codes.values() if self.name in code.callers]
        if ran and all(code.has_no_graph for code in ran):
            return "dynamo captured no graph of it, and it runs eagerly"
        return None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_compiling():  # inside another torch.compile
            return self.__wrapped__(*args, **kwargs)
        model_call = self.model_call
        if model_call is not None and not model_call.is_running:
            return model_call.around(self._call, args, kwargs)
        return self._call(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._slot.reduce()

    def install(self) -> None:
        """Replace the module's method."""
        self._slot.fill(self)
        self.is_active = True

    def remove(self) -> None:
        """Restore the module's method, unless somebody has replaced it since."""
        self.is_active = False
        self._slot.clear(self)

    def fall_back(self, failure: Failure) -> None:
        """Run eagerly from now on, and log why."""
        if self.failure is None:
            self.failure = failure
            _logger.warning("compile: %s runs eagerly from now on: %s", self.label, failure)

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        mode = mode_of(self._module())
        if torch_private.is_in_backward() and self._last and self._last[0][:2] == mode[:2]:
            # Checkpointing repeats the forward, and must get the same saved tensors.
            mode, code = self._last
        else:
            code = self._choose_code(mode)
            if code is not None and self.check is not None:
                code = self._verified(code, mode, args, kwargs)
        if code is None:
            return self.__wrapped__(*args, **kwargs)
        return self._run_compiled(code, mode, args, kwargs)

    def _choose_code(self, mode: Mode) -> CompiledCode | None:
        if self.failure is None and self.kind.spent is not None:
            # Otherwise each of many blocks would compile once more before it falls back.
            self.fall_back(self.kind.spent)
        is_eager = self.failure is not None or self.held_back is not None or not self.is_active
        code = None
        if not is_eager:
            code = self.kind.codes.get(mode)
            if code is None or self.name not in code.callers:
                self.kind = self.kind.for_new_region()
                code = self.kind.code(mode)
        self._last = (mode, code)
        return code

    def _verified(
        self, code: CompiledCode, mode: Mode, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> CompiledCode | None:
        assert self.check is not None

        def run(*args: Any, **kwargs: Any) -> Any:
            return self._run_compiled(code, mode, args, kwargs)

        failure = self.check(run, args, kwargs)
        if failure is not None:
            self.fall_back(failure)
        if self.failure is not None:  # it may also have failed to compile
            self._last = (mode, None)
            return None
        return code

    def _run_compiled(
        self, code: CompiledCode, mode: Mode, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        backend = code.backend
        before = (backend.num_graphs, len(backend.break_reasons))
        is_first = self.name not in code.callers
        try:
            if is_first:
                code.callers.add(self.name)
            outputs = code.run(self._module(), *args, **kwargs)
        except Exception as error:
            if not torch_private.is_of_dynamo(error):
                raise
            if (passing := passing_error(error)) is not None:
                raise passing from None
            failed = error
        else:
            is_known = before == (backend.num_graphs, len(backend.break_reasons))
            if is_first or not is_known or backend.failure is not None:
                failure = self.kind.after_call(mode, self.label, before, is_first=is_first)
                if failure is not None:
                    self.fall_back(failure)
            return outputs
        try:
            may_have_run = code.has_compiled or backend.num_graphs > before[0]
            return self._recover(failed, args, kwargs, may_have_run=may_have_run)
        finally:
            del failed  # its traceback keeps the inputs alive

    def _recover(
        self, error: Exception, args: tuple[Any, ...], kwargs: dict[str, Any], *, may_have_run: bool
    ) -> Any:
        failure = failure_of_dynamo(error)
        advice = f"use target='forward', or leave {self.attribute} out of target"
        if may_have_run and self.attribute not in REPEATABLE:
            advice = f"A part of it may have run, so it cannot be run again eagerly; {advice}"
        elif self.kind.config.on_error == "raise":
            if self.attribute == "forward":
                advice = "leave it out by regions"
            if torch_private.is_user_error(error) and self.attribute in REPEATABLE:
                # Usually mismatched shapes: eager code raises at the line that caused it.
                self.__wrapped__(*args, **kwargs)
            advice = f'Set on_error="eager" to train on with it uncompiled, or {advice}'
        else:
            # If this raises, the error is the user's.
            outputs = self.__wrapped__(*args, **kwargs)
            self._last = None
            self.fall_back(failure)
            return outputs
        raise CompileError(
            f"compile: {self.label} did not compile: {failure}. {advice}."
        ) from error
