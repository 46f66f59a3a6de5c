"""Watch every operation of a step, forward and backward, and tell which module it belongs to."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from inspect import signature
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from ._nested import tensors_in
from ._receipt import Tally
from ._work import compute_dtype, computes, count_flops, is_cast

_HOOK_OPTIONS = signature(nn.Module.register_forward_hook).parameters
_ALSO_AFTER_AN_ERROR = {"always_call": True} if "always_call" in _HOOK_OPTIONS else {}


class WorkRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds each operation to the tally of its module's type.

    A forward operation belongs to the innermost module that is running. The nodes of the autograd
    graph that a module's forward made belong to it as well, and so does what they do in backward.

    Args:
        model: The model; all its modules are watched.
        tally: What is filled.
    """

    def __init__(self, model: nn.Module, tally: Tally) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._model = model
        self._tally = tally
        self._place = _Place()
        self._known_nodes: set[Any] = set()  # holds them, so that none is mistaken for another

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Record what runs within the block."""
        with ExitStack() as hooks:
            for module in self._model.modules():
                enter = module.register_forward_pre_hook(self._enter, with_kwargs=True)
                hooks.callback(enter.remove)
                leave = module.register_forward_hook(self._leave, **_ALSO_AFTER_AN_ERROR)
                hooks.callback(leave.remove)
            hooks.callback(self._known_nodes.clear)
            with self:
                yield

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        # What made its inputs is not its own work, but that of the module around it.
        running = self._place.running
        self._claim(running[-1] if running else None, (args, kwargs))
        running.append(module)

    def _leave(self, module: nn.Module, _inputs: Any, outputs: Any) -> None:
        running = self._place.running
        while running and running.pop() is not module:
            pass  # torch 2.0 does not tell of a forward that raised, and was caught
        self._claim(module, outputs)

    def _claim(self, module: nn.Module | None, values: Any) -> None:
        """Give ``module`` the nodes that made ``values``, down to those that others have."""
        pending: list[Any] = [tensor.grad_fn for tensor in tensors_in(values)]
        while pending:
            node = pending.pop()
            if node is None or node in self._known_nodes:
                continue
            self._known_nodes.add(node)
            if module is not None and not hasattr(node, "variable"):  # of a parameter's gradient
                node.register_prehook(lambda _grads: self._place.move_to(module))
                node.register_hook(lambda _grads, _outputs: self._place.move_to(None))
            pending.extend(parent for parent, _ in node.next_functions)

    @override
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        outputs = func(*args, **(kwargs or {}))
        self._record(func, args, outputs)
        return outputs

    def _record(self, function: Any, args: Any, outputs: Any) -> None:
        is_backward = _is_in_backward()
        module = self._place.module
        if module is None and not is_backward and not _builds_graph(args):
            return  # the optimizer and the loss scaler, or data being prepared
        if self._place.running:
            is_backward = False  # a forward that is run again for its backward
        if is_cast(function, args, outputs):
            self._tally.add_cast()
        dtype = compute_dtype(args, outputs) if computes(function) else None
        if dtype is not None:
            flops = count_flops(function, args, outputs)
            self._tally.add(module, dtype, flops, is_backward=is_backward)


class _Place(threading.local):
    """Where this thread is: autograd runs the backward of each device in its own."""

    def __init__(self) -> None:
        self.running: list[nn.Module] = []
        self._in_backward_of: nn.Module | None = None

    def move_to(self, module: nn.Module | None) -> None:
        self._in_backward_of = module

    @property
    def module(self) -> nn.Module | None:
        return self.running[-1] if self.running else self._in_backward_of


def _is_in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1  # noqa: SLF001 - there is no public way


def _builds_graph(args: Any) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors_in(args))
