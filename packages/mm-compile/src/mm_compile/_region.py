"""A module that runs compiled code, or eagerly where that cannot be."""

import copy
import logging
from collections.abc import Callable
from typing import Any
from weakref import ref

import torch
from torch import nn

from ._agreement import Agreement
from ._code import eager_method, own_method
from ._errors import CompileError, RecompileLimitError
from ._failure import Failure, failure_of_dynamo
from ._inputs import Traits, describe_inputs
from ._torch import dynamo_errors, is_users_own_error
from ._unit import Kind, Mode, Unit, mode_of

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
        self._errors = dynamo_errors()
        self._is_installed = False

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The eager method, where ``inspect.signature`` looks for it."""
        module = self._module()
        assert module is not None  # it holds this object
        return self._eager or eager_method(module, self.attribute)

    @property
    def is_active(self) -> bool:
        """Whether it stands in its module's place."""
        return self._is_installed

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _is_compiling():  # somebody compiles a whole around it
            return self.__wrapped__(*args, **kwargs)
        if self.reads_agreement and self.agreement is not None:
            self.agreement.read()
        if self.failure is not None or not self._is_installed:
            return self.__wrapped__(*args, **kwargs)
        return self._run_compiled(args, kwargs)

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

    def _run_compiled(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        module = self._module()
        assert module is not None
        mode = mode_of(module)
        unit, is_newcomer = self._unit(mode)
        backend = unit.backend
        num_graphs, num_runs = backend.num_graphs, backend.num_runs
        try:
            outputs = unit.run(module, *args, **kwargs)
        except self._errors as error:
            failed = error
        else:
            if backend.failure is not None:
                failure, backend.failure = backend.failure, None
                self._give_up(failure)
            elif backend.num_graphs != num_graphs:
                self._count(
                    unit, mode, describe_inputs(self.__wrapped__, args, kwargs), is_newcomer
                )
            return outputs
        return self._recover(failed, backend.num_runs != num_runs, args, kwargs)

    def _unit(self, mode: Mode) -> tuple[Unit, bool]:
        unit = self.kind.units.get(mode)
        if unit is not None and self.name in unit.callers:
            return unit, False
        self.kind = self.kind.for_newcomer()
        unit = self.kind.unit(mode)
        unit.callers.add(self.name)
        return unit, True

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
            raise CompileError(
                f"compile: {self.label} did not compile: {failure_of_dynamo(error)}. Set "
                'on_error="eager" to train on with this region uncompiled, or leave it out by '
                "regions."
            ) from error
        if has_partly_run and self.attribute not in _REPEATABLE:
            raise CompileError(
                f"compile: {self.label} did not compile: {failure_of_dynamo(error)}. A part of it "
                "had run already, so it cannot be run again eagerly; use target='forward'."
            ) from error
        # If this raises, the error is the user's and not the compiler's.
        outputs = self.__wrapped__(*args, **kwargs)
        self._give_up(failure_of_dynamo(error))
        return outputs

    def _give_up(self, failure: Failure) -> None:
        self.run_eagerly_from_now_on(failure)
        if self.agreement is not None:
            self.agreement.announce(self.index, failure)

    def _count(self, unit: Unit, mode: Mode, inputs: Traits, is_newcomer: bool) -> None:  # noqa: FBT001
        change = unit.remember(inputs)
        if change is None:
            return
        if is_newcomer:
            # Not compiled again, but like others of its kind only at first sight.
            self.kind.num_strangers += 1
            return
        unit.num_recompiles += 1
        change = change or "nothing in its inputs (a value that its code reads elsewhere)"
        _logger.debug("compile: %s was compiled again; %s", self.label, change)
        if unit.num_recompiles > self.kind.config.recompile_limit:
            self._apply_policy(unit, mode, change)

    def _apply_policy(self, unit: Unit, mode: Mode, change: str) -> None:
        config = self.kind.config
        excess = (
            f"it was compiled again {unit.num_recompiles} times, recompile_limit is "
            f"{config.recompile_limit}; the last time because {change}"
        )
        if config.on_recompile == "raise":
            raise RecompileLimitError(
                f"compile: {self.label}: {excess}. Set on_recompile to 'dynamic' or 'eager', pad "
                "the inputs to fewer sizes (BucketingCollate), or raise recompile_limit."
            )
        if config.on_recompile == "dynamic" and not unit.is_dynamic:
            _logger.warning("compile: %s: %s. It now compiles for any size.", self.label, excess)
            self.kind.make_dynamic(mode)
        else:
            self._give_up(Failure(excess))
