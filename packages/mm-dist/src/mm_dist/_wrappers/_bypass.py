"""Notice a backward pass whose gradients the wrapper will not average."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mm_dist._errors import GradientSyncError

# A watched parameter costs up to a microsecond per backward, so it is this many of any model.
_NUM_WATCHED = 2
_NUM_LEARNING_PASSES = 2


class ForwardGuard:
    """Raises in a backward pass that no forward of the wrapper has prepared.

    torch averages the first gradient that a parameter gets after the wrapper's forward. Any other
    stays local, silently: of the module called around the wrapper, of a second backward.

    Every parameter is watched until the wrapper's first forward; afterwards a few are, of each
    child (the backbone, the head, ...) at least one, as far as they suffice.

    Args:
        wrapper: The data-parallel wrapper.
        parameters: Name and parameter of all that it averages.
    """

    def __init__(self, wrapper: Any, parameters: Sequence[tuple[str, Tensor]]) -> None:
        self._passes = _Passes(wrapper)
        self._parameters = parameters
        self._early: list[tuple[Tensor, Any]] = [
            (parameter, _watch_early(parameter, name, self._passes))
            for name, parameter in parameters
        ]

    def note_forward(self, is_synchronized: bool) -> None:  # noqa: FBT001 (called in each step)
        """Expect a backward pass.

        Args:
            is_synchronized: Whether the wrapper averages its gradients, which it does not under
                ``no_sync()``.
        """
        passes = self._passes
        passes.number += 1
        passes.is_deferred = not is_synchronized
        if self._early:
            self._watch_few()

    def _watch_few(self) -> None:
        for parameter, handle in self._early:
            handle.remove()
            # torch would go on to look for hooks, at the price of one.
            if not parameter._backward_hooks:  # noqa: SLF001
                parameter._backward_hooks = None  # noqa: SLF001
        self._early.clear()
        for name, parameter in _choose_watched(self._parameters):
            if parameter.requires_grad:  # else frozen since
                _hook_accumulation(parameter, _Watcher(self._passes, name).note)


class _Passes:
    """The forward passes so far. Refers to no parameter: what parameters hold refers to it."""

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

    __slots__ = ("_limit", "_name", "_num_gradients", "_number", "_passes")

    def __init__(self, passes: _Passes, name: str) -> None:
        self._passes = passes
        self._name = name
        self._number = 0
        self._num_gradients = 0
        self._limit = 1

    def note(self, *_: Any) -> None:
        number = self._passes.number
        if self._number != number:
            self._number = number
            self._num_gradients = 1
        else:
            self._num_gradients += 1
            self._check()

    def _check(self) -> None:
        if self._number <= _NUM_LEARNING_PASSES and self._passes.is_graph_static():
            # A checkpointed module may add several times per step; torch, too, learns it now.
            self._limit = max(self._limit, self._num_gradients)
        wrapper = self._passes.find_averaging()
        if wrapper is not None and self._num_gradients > self._limit:
            raise _build_error(self._name, wrapper)


def _watch_early(parameter: Tensor, name: str, passes: _Passes) -> Any:
    """Raise if the parameter gets a gradient before the wrapper's first forward."""
    reference = weakref.ref(parameter)

    def check(*_: Any) -> None:
        wrapper = passes.find_averaging() if passes.number == 0 else None
        if wrapper is not None:
            raise _build_error(name, wrapper)

    def confirm(_: Tensor) -> None:
        # torch.autograd.grad comes here too, but does not go on to add to .grad.
        found = reference()
        if found is not None and passes.number == 0:
            _hook_accumulation(found, check)

    return parameter.register_hook(confirm)  # type: ignore[no-untyped-call]


def _hook_accumulation(parameter: Any, hook: Callable[..., None]) -> None:
    """Call ``hook`` whenever a gradient was added to ``.grad``."""
    if hasattr(parameter, "register_post_accumulate_grad_hook"):  # since torch 2.1, and cheaper
        parameter.register_post_accumulate_grad_hook(hook)
        return
    with torch.enable_grad():
        view = parameter.expand_as(parameter)
    # The node lives as long as torch's reducer, which has a hook there itself.
    view.grad_fn.next_functions[0][0].register_hook(hook)


def _choose_watched(parameters: Sequence[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    """Return the first parameter of each child, and of the halves of large ones if too few."""
    by_child: dict[str, list[tuple[str, Tensor]]] = {}
    for name, parameter in parameters:
        by_child.setdefault(name.partition(".")[0], []).append((name, parameter))
    groups = list(by_child.values())
    while len(groups) < _NUM_WATCHED and max(map(len, groups)) > 1:
        largest = max(groups, key=len)
        position = groups.index(largest)
        half = len(largest) // 2
        groups[position : position + 1] = [largest[:half], largest[half:]]
    step = max(len(groups), _NUM_WATCHED) / _NUM_WATCHED
    return [groups[int(step * i)][0] for i in range(min(_NUM_WATCHED, len(groups)))]


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
