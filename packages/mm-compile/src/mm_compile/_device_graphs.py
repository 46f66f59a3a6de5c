"""Device graphs (``mode="reduce-overhead"``) whose results outlive the next call.

A recorded graph writes its results to the same memory in every replay. That breaks losses kept for
a log, gradients accumulated over micro-batches, and two calls before one backward. So results that
leave the model are copied, gradients are copied where autograd would keep the graph's memory, and
a new iteration is marked only when no backward is pending.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from ._tensors import map_tensors

_MODES = ("reduce-overhead", "max-autotune")


def records_graphs(keywords: Mapping[str, Any]) -> bool:
    """Whether ``torch.compile(**keywords)`` records device graphs."""
    if keywords.get("backend", "inductor") == "cudagraphs":
        return True
    options = {str(name).replace("-", "_"): on for name, on in keywords.get("options", {}).items()}
    return keywords.get("mode") in _MODES or bool(options.get("triton.cudagraphs"))


class DeviceGraphs:
    """Callbacks of a model whose code is replayed from device graphs.

    Costs a copy of the model's outputs and, in the first micro-batch of a step, of its gradients.
    Does nothing for tensors on the CPU.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._pending: ref[_Pending] | None = None
        # torch 2.0 and 2.1 have no such function.
        self._mark: Callable[[], None] = getattr(
            getattr(torch, "compiler", None), "cudagraph_mark_step_begin", lambda: None
        )
        self._hooks = [
            parameter.register_hook(partial(_copy_first, ref(parameter)))  # type: ignore[no-untyped-call]
            for parameter in parameters
            if parameter.requires_grad
        ]

    def begin(self) -> None:
        """Mark the beginning of an iteration, unless the backward of an earlier call is pending."""
        pending = None if self._pending is None else self._pending()
        if pending is None or pending.has_begun:
            self._mark()

    def copy_outputs(self, outputs: Any) -> Any:
        """Return the outputs of a call, outside of the graphs' memory."""
        pending = _Pending()

        def copy(_name: str, tensor: Tensor) -> Tensor:
            if not is_recorded(tensor):
                return tensor
            copied = tensor.clone()
            if copied.requires_grad:
                copied.register_hook(pending.begin)  # type: ignore[no-untyped-call]
            return copied

        self._pending = ref(pending)
        return map_tensors(copy, "outputs", outputs)

    def remove(self) -> None:
        """Remove the hooks of the parameters."""
        for hook in self._hooks:
            hook.remove()


class _Pending:
    """Whether backward has reached an output of a call.

    Lives as long as the autograd graph: a backward that never comes is not waited for.
    """

    has_begun = False

    def begin(self, _gradient: Tensor) -> None:
        self.has_begun = True


def is_recorded(tensor: Tensor) -> bool:
    """Whether a tensor may be in the memory of a device graph."""
    return tensor.device.type != "cpu"


def _copy_first(parameter: ref[nn.Parameter], gradient: Tensor) -> Tensor | None:
    """Return a copy of the gradient that becomes ``.grad`` itself; later ones are added to it."""
    owner = parameter()
    is_first = owner is not None and owner.grad is None and is_recorded(gradient)
    return gradient.clone() if is_first else None
