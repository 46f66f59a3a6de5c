"""Gradient hooks that detect local gradients and parameters without a gradient."""

import logging
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor

from mm_dist._errors import GradientSyncError
from mm_dist._torch_private import drop_backward_hooks, is_gradient_accumulated

_logger = logging.getLogger(__name__)

# A hook costs microseconds per backward, however little it does: the engine must take Python's
# lock. So parameters go without after the first passes.
_NUM_WATCHED_PASSES = 16
_NUM_LEARNING_PASSES = 2


class ForwardGuard:
    """Raises in a backward pass that no forward of the wrapper has prepared.

    torch averages the first gradient that a parameter gets after the wrapper's forward. Any other
    stays local, silently: of the module called around the wrapper, of a second backward.

    Args:
        wrapper: The data-parallel wrapper.
        parameters: Name and parameter of all that it averages.
        is_constant: Watch in every pass, not in the first 16 only.
    """

    def __init__(
        self, wrapper: Any, parameters: Sequence[tuple[str, Tensor]], *, is_constant: bool
    ) -> None:
        self._passes = _Passes(wrapper)
        self._is_constant = is_constant
        self._watched: list[tuple[Tensor, Any]] = []
        for name, parameter in parameters:
            watcher = _Watcher(self._passes, name, parameter)
            handle = parameter.register_hook(watcher.note)  # type: ignore[no-untyped-call]
            self._watched.append((parameter, handle))

    def note_forward(self, is_synchronized: bool) -> bool:  # noqa: FBT001
        """Count a forward pass; call it in each one.

        Args:
            is_synchronized: Whether the wrapper averages its gradients, which it does not under
                ``no_sync()``.

        Returns:
            Whether the guard watches any further.
        """
        self._passes.number += 1
        self._passes.is_deferred = not is_synchronized
        if not self._is_constant and self._passes.number > _NUM_WATCHED_PASSES:
            self._stop()
        return bool(self._watched)

    def _stop(self) -> None:
        for parameter, handle in self._watched:
            handle.remove()
            drop_backward_hooks(parameter)
        self._watched.clear()


class _Passes:
    """Counter of a wrapper's forward passes, without a reference to parameters."""

    __slots__ = ("is_deferred", "number", "wrapper")

    def __init__(self, wrapper: Any) -> None:
        self.number = 0
        self.is_deferred = False
        self.wrapper = weakref.ref(wrapper)


class _Watcher:
    """The hook of one parameter: counts its gradients since the wrapper's forward."""

    __slots__ = ("_limit", "_name", "_num_gradients", "_number", "_parameter", "_passes")

    def __init__(self, passes: _Passes, name: str, parameter: Tensor) -> None:
        self._passes = passes
        self._name = name
        self._parameter = weakref.ref(parameter)
        self._number = 0
        self._num_gradients = 0
        self._limit = 1

    def note(self, _: Tensor) -> None:
        """Raise if this gradient would not be averaged."""
        passes = self._passes
        parameter = self._parameter()
        if parameter is None or not is_gradient_accumulated(parameter):
            return
        if self._number != passes.number:
            self._number = passes.number
            self._num_gradients = 0
        self._num_gradients += 1
        if self._num_gradients > 1 or passes.number == 0:
            self._check(passes.wrapper())

    def _check(self, wrapper: Any) -> None:
        is_local = wrapper is None or self._passes.is_deferred
        is_learning = 0 < self._number <= _NUM_LEARNING_PASSES
        if is_learning and getattr(wrapper, "static_graph", False):
            # A checkpointed module may add several times per step; torch, too, learns it now.
            self._limit = max(self._limit, self._num_gradients)
        is_too_many = self._num_gradients > self._limit or self._number == 0
        if is_local or not wrapper.require_backward_grad_sync or not is_too_many:
            return
        raise GradientSyncError(
            f"A gradient reached {self._name} in a backward pass that no forward of the "
            f"{type(wrapper).__name__} prepared; it would not be averaged, and the ranks would "
            "drift apart. Either the module, or a part of it, was called around the wrapper; or "
            "backward ran twice after one forward; or a module is checkpointed more than once. "
            "Call the wrapper itself before each backward, and checkpoint with "
            "use_reentrant=False. If gradients are to stay on this rank, use no_sync(), or pass "
            "check_forward=False to the wrapper.",
            (self._name,),
        )


class GradientWatch:
    """Logs the parameters that got no gradient in a step.

    Args:
        parameters: Name and parameter of all that require gradients.
    """

    def __init__(self, parameters: Sequence[tuple[str, Tensor]]) -> None:
        self._names = [name for name, _ in parameters]
        self._reached: set[str] = set()
        self._reported: list[str] = []
        for name, parameter in parameters:
            parameter.register_hook(partial(self._note, name))  # type: ignore[no-untyped-call]

    def _note(self, name: str, _: Tensor) -> None:
        self._reached.add(name)

    def start(self) -> None:
        """Forget the last step."""
        self._reached.clear()

    def report(self) -> None:
        """Log the parameters without gradient since ``start``, when they changed."""
        missing = [name for name in self._names if name not in self._reached]
        if missing and missing != self._reported:
            _logger.warning(
                "The loss did not reach these parameters: %s. Freeze them "
                "(requires_grad=False), use them in the loss, or pass "
                "find_unused_parameters=True.",
                ", ".join(missing),
            )
        self._reported = missing
