"""Device graphs (``mode="reduce-overhead"``) whose results outlive the next call.

A recorded graph writes its results to the same memory whenever it is replayed. Three things that
training does anyway are then wrong, or end in torch's error about an overwritten tensor: a loss is
kept until the next log line, the gradients of a micro-batch stay in ``.grad`` while the next one
runs, and a model is called twice before backward. Here results that leave the model are copied,
gradients are copied where autograd would keep the graph's own memory, and torch is told that an
iteration begins only when no backward is due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

_MODES = ("reduce-overhead", "max-autotune")
_OPTION = "triton.cudagraphs"


def records_graphs(keywords: Mapping[str, Any]) -> bool:
    """Whether ``torch.compile(**keywords)`` records device graphs, where the device can."""
    if keywords.get("backend", "inductor") == "cudagraphs":
        return True
    options = {str(name).replace("-", "_"): on for name, on in keywords.get("options", {}).items()}
    return keywords.get("mode") in _MODES or bool(options.get(_OPTION))


class DeviceGraphs:
    """Watches the calls of a model whose code is replayed from device graphs.

    Costs a copy of what the model returns and, in the first micro-batch of a step, of its
    gradients. Does nothing for tensors on the CPU, where torch records nothing.

    Args:
        parameters: Those of the model.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._due: ref[_BackwardDue] | None = None
        self._mark: Callable[[], None] = getattr(
            getattr(torch, "compiler", None), "cudagraph_mark_step_begin", lambda: None
        )
        self._hooks = [
            parameter.register_hook(_copying_for(parameter))  # type: ignore[no-untyped-call]
            for parameter in parameters
            if parameter.requires_grad
        ]

    def begin(self) -> None:
        """Tell torch that an iteration begins, unless a backward of an earlier call is due.

        A mark would let it overwrite what that backward reads.
        """
        due = None if self._due is None else self._due()
        if due is None or due.has_begun:
            self._mark()

    def keep(self, outputs: Any) -> Any:
        """Return what a call of the model returned, in memory of its own."""
        from torch.utils._pytree import tree_map  # noqa: PLC0415 - loaded only to compile

        due = _BackwardDue()

        def own(value: Any) -> Any:
            if not isinstance(value, Tensor) or not is_recorded(value):
                return value
            copy = value.clone()
            if copy.requires_grad:
                copy.register_hook(due)  # type: ignore[no-untyped-call]
            return copy

        kept = tree_map(own, outputs)
        # Lives as long as the autograd graph that holds it: outputs that nobody goes backward from
        # are not waited for.
        self._due = ref(due)
        return kept

    def remove(self) -> None:
        """Leave the parameters."""
        for hook in self._hooks:
            hook.remove()


class _BackwardDue:
    """A hook of the outputs of one call: called when backward comes to one of them."""

    def __init__(self) -> None:
        self.has_begun = False

    def __call__(self, _gradient: Tensor) -> None:
        self.has_begun = True


def is_recorded(tensor: Tensor) -> bool:
    """Whether a tensor may lie in the memory of a device graph."""
    return tensor.device.type != "cpu"


def _copying_for(parameter: nn.Parameter) -> Callable[[Tensor], Tensor | None]:
    holder = ref(parameter)

    def copy(gradient: Tensor) -> Tensor | None:
        owner = holder()
        # Only the first gradient becomes ``.grad`` itself; later ones are added to it.
        takes = owner is not None and owner.grad is None and is_recorded(gradient)
        return gradient.clone() if takes else None

    return copy
