"""Activation checkpointing: what modules compute between is computed again in the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from typing_extensions import override

from ._kept_buffers import BufferCopy, changed_buffers, copy_buffers, repeating
from ._variants import Variant, make_variant

__all__ = ["checkpoint_module", "checkpointed_names"]

_is_compiling: Callable[[], bool] = getattr(
    getattr(torch, "compiler", None), "is_compiling", lambda: False
)
# Since torch 2.0.
_backward_id: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: -1)  # noqa: SLF001


def checkpoint_module(module: nn.Module) -> None:
    """Let ``module`` keep only its inputs for the backward pass, in place.

    Where gradients are recorded, what it computes between its inputs and its outputs is dropped,
    and computed again in the backward pass: with the same random numbers and autocast, and with its
    buffers as they were, of which the repetition changes none.

    Args:
        module: Has a forward of its own. Its hooks are called once, around the forward.
    """
    if not isinstance(module, _Checkpointed):
        make_variant(module, _Checkpointed)


def checkpointed_names(model: nn.Module) -> list[str]:
    """Return the names of the modules in ``model`` that are checkpointed."""
    return [name for name, module in model.named_modules() if isinstance(module, _Checkpointed)]


class _Checkpointed(Variant):
    # Names of the buffers that a forward changes and may depend on; None before the first one.
    _changing_buffers: frozenset[str] | None = None

    @override
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return super().forward(*args, **kwargs)
        if _is_compiling():  # the compiler knows by itself what of a repetition counts
            return checkpoint(self._compute, *args, use_reentrant=False, **kwargs)
        before = copy_buffers(self, self._changing_buffers)
        run = _Run(self, tuple(kwargs), before)
        # torch looks for the device, whose random numbers it keeps, among these arguments only.
        any_parameter = next(self.parameters(), None)
        outputs = checkpoint(run, any_parameter, *args, *kwargs.values(), use_reentrant=False)
        if self._changing_buffers is None and self.training:
            self._changing_buffers = changed_buffers(self, before)
        return outputs

    def _compute(self, *args: Any, **kwargs: Any) -> Any:
        if _is_compiling() or _backward_id() == -1:
            return super().forward(*args, **kwargs)
        with repeating(self, {}):  # where the compiler gave up
            return super().forward(*args, **kwargs)


class _Run:
    """Runs a module, and repeats that.

    Args:
        module: Checkpointed.
        names: Of the last arguments that it is called with.
        before: Buffers as they were before.
    """

    def __init__(
        self, module: _Checkpointed, names: tuple[str, ...], before: dict[str, BufferCopy]
    ) -> None:
        self._module, self._names, self._before = module, names, before
        self._is_repetition = False

    def __call__(self, _: Any, *values: Any) -> Any:
        num_positional = len(values) - len(self._names)
        args = values[:num_positional]
        kwargs = dict(zip(self._names, values[num_positional:], strict=True))
        # A forward that begins in a backward pass is part of the repetition of another one.
        is_repetition = self._is_repetition or _backward_id() != -1
        self._is_repetition = True
        forward = super(_Checkpointed, self._module).forward
        if not is_repetition:
            return forward(*args, **kwargs)
        with repeating(self._module, self._before):
            return forward(*args, **kwargs)
