"""Notice a backward pass whose gradients the wrapper will not average."""

import weakref
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any

import torch
from torch import Tensor

from mm_dist._errors import GradientSyncError

# A hook costs microseconds per backward, however little it does: the engine must take Python's
# lock. So parameters go without in most steps.
_NUM_THOROUGH_PASSES = 16
_NUM_WATCHED = 2
_MEAN_PAUSE = 63
_NUM_LEARNING_PASSES = 2


class ForwardGuard:
    """Raises in a backward pass that no forward of the wrapper has prepared.

    torch averages the first gradient that a parameter gets after the wrapper's forward. Any other
    stays local, silently: of the module called around the wrapper, of a second backward.

    Every parameter is watched until the wrapper has run forward 16 times; afterwards two at a time,
    which change with every forward. Unless the guard is constant, it pauses in between, on average
    for 63 forward passes: never the same number in a row, which what happens at every 64th step
    could slip through, but the same ones on all ranks.

    Args:
        wrapper: The data-parallel wrapper.
        parameters: Name and parameter of all that it averages.
        is_constant: Never pause.

    Attributes:
        num_unwatched: Forward passes that are left of a pause. Whoever runs one counts it down
            himself, and calls ``note_forward`` if it was 0: a call would cost more than the rest.
    """

    def __init__(
        self, wrapper: Any, parameters: Sequence[tuple[str, Tensor]], *, is_constant: bool
    ) -> None:
        self._passes = _Passes(wrapper)
        self._watchers = [_Watcher(self._passes, name, parameter) for name, parameter in parameters]
        self._pauses = _Pauses(0 if is_constant else _MEAN_PAUSE)
        self._turns = count()
        self.num_unwatched = 0
        self._watched: list[tuple[Tensor, Any]] = []
        self._watch(self._watchers)

    def note_forward(self, is_synchronized: bool, *, may_pause: bool) -> None:  # noqa: FBT001
        """Expect a backward pass; to be called in each forward outside of pauses.

        Args:
            is_synchronized: Whether the wrapper averages its gradients, which it does not under
                ``no_sync()``.
            may_pause: Whether the passes to come may go without a call.
        """
        passes = self._passes
        passes.number += 1
        passes.is_deferred = not is_synchronized
        if may_pause and passes.number > _NUM_THOROUGH_PASSES:
            self._change_watched()

    def _change_watched(self) -> None:
        pause = self._pauses.draw() if self._watched else 0
        self._watch(() if pause else self._choose())
        self.num_unwatched = max(pause - 1, 0)  # after this one

    def _choose(self) -> Iterable["_Watcher"]:
        # Half of the model apart: a part that is called around the wrapper is met sooner.
        total, turn = len(self._watchers), next(self._turns)
        places = {(turn + total * half // _NUM_WATCHED) % total for half in range(_NUM_WATCHED)}
        return [self._watchers[place] for place in places]

    def _watch(self, watchers: Iterable["_Watcher"]) -> None:
        for parameter, handle in self._watched:
            handle.remove()
            # torch would go on to look for hooks, at the price of one.
            if not parameter._backward_hooks:  # noqa: SLF001
                parameter._backward_hooks = None  # noqa: SLF001
        self._watched = [watched for watched in (one.watch() for one in watchers) if watched]


class _Pauses:
    """Numbers of forward passes that look random, and are the same on every rank."""

    def __init__(self, mean: int) -> None:
        self._end = 2 * mean + 1
        self._state = 0

    def draw(self) -> int:
        """Return a number from 0 to twice the mean."""
        # A linear congruential generator, with the constants of Numerical Recipes (Press et al.,
        # section 7.1), so that nobody else's random numbers change.
        self._state = (1664525 * self._state + 1013904223) % 2**32
        return (self._state >> 16) % self._end


class _Passes:
    """The passes outside of pauses. Refers to no parameter: what parameters hold refers to it."""

    __slots__ = ("is_deferred", "number", "wrapper")

    def __init__(self, wrapper: Any) -> None:
        self.number = 0
        self.is_deferred = False
        self.wrapper = weakref.ref(wrapper)

    def is_graph_static(self) -> bool:
        """Return whether the wrapper was promised the same graph in each step."""
        return bool(getattr(self.wrapper(), "static_graph", False))

    def find_averaging(self) -> Any:
        """Return the wrapper if gradients are to be averaged now, else ``None``."""
        wrapper = self.wrapper()
        is_local = wrapper is None or self.is_deferred or not wrapper.require_backward_grad_sync
        return None if is_local else wrapper


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

    def watch(self) -> tuple[Tensor, Any] | None:
        """Return the parameter and the handle of its hook; None if no gradient can come."""
        parameter = self._parameter()
        if parameter is None or not parameter.requires_grad:  # frozen since
            return None
        return parameter, parameter.register_hook(self.note)  # type: ignore[no-untyped-call]

    def note(self, _: Tensor) -> None:
        """Raise if the gradient that comes now is one too many."""
        passes = self._passes
        if not _is_accumulated(self._parameter()):
            return
        if self._number != passes.number:
            self._number = passes.number
            self._num_gradients = 0
        self._num_gradients += 1
        if self._num_gradients > 1 or passes.number == 0:
            self._check()

    def _check(self) -> None:
        if 0 < self._number <= _NUM_LEARNING_PASSES and self._passes.is_graph_static():
            # A checkpointed module may add several times per step; torch, too, learns it now.
            self._limit = max(self._limit, self._num_gradients)
        wrapper = self._passes.find_averaging()
        is_too_many = self._num_gradients > self._limit or self._number == 0
        if wrapper is not None and is_too_many:
            raise _build_error(self._name, wrapper)


def _is_accumulated(parameter: Tensor | None) -> bool:
    """Return whether torch is about to add to ``.grad``, as backward does, and autograd.grad not.

    To be called in a hook of the parameter.
    """
    if parameter is None:
        return False
    try:
        return bool(torch._C._will_engine_execute_node(_find_node(parameter)))  # noqa: SLF001
    except RuntimeError:  # its answer for a leaf whose gradient is only returned
        return False


def _find_node(parameter: Tensor) -> Any:
    """Return the node of the graph that adds to the parameter's gradient."""
    if hasattr(torch._C, "_current_autograd_node"):  # noqa: SLF001 (since torch 2.0)
        return torch._C._current_autograd_node()  # noqa: SLF001
    with torch.enable_grad():
        view: Any = parameter.expand_as(parameter)
    return view.grad_fn.next_functions[0][0]


def _build_error(own_name: str, wrapper: Any) -> GradientSyncError:
    name = wrapper._name_prefix + own_name  # noqa: SLF001 (part of the same wrapper)
    message = (
        f"A gradient reached {name} in a backward pass that no forward of the "
        f"{type(wrapper).__name__} prepared; it would not be averaged, and the ranks would drift "
        "apart. Either the module, or a part of it, was called around the wrapper; or backward ran "
        "twice after one forward; or a module is checkpointed more than once. Call the wrapper "
        "itself before each backward, and checkpoint with use_reentrant=False. If gradients are to "
        "stay on this rank, use no_sync(), or pass check_forward=False to the wrapper."
    )
    return GradientSyncError(message, (name,))
