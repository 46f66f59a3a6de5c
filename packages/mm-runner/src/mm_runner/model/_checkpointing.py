"""Activation checkpointing of single modules, by ``torch.utils.checkpoint``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from mm_runner._torch_private import version_of

from ._wrapped_forward import call_replaced

__all__ = ["checkpointed_forward"]

# Copies of smaller buffers are always kept: torch does not count changes by batch normalization.
_MAX_KEPT = 1 << 16

_is_compiling: Callable[[], bool] = getattr(
    getattr(torch, "compiler", None), "is_compiling", lambda: False
)


def checkpointed_forward(module: nn.Module, replaced: Any, *args: Any, **kwargs: Any) -> Any:
    """Recompute the activations of ``module`` in the backward pass; its buffers change once."""
    if not torch.is_grad_enabled():
        return call_replaced(module, replaced, *args, **kwargs)
    # By position: torch's function has keyword arguments too, and finds the device by these.
    names, values = tuple(kwargs), (*args, *kwargs.values())

    def forward(*values: Any) -> Any:
        num_args = len(values) - len(names)
        named = dict(zip(names, values[num_args:]))  # noqa: B905 - compiled by old dynamo
        return call_replaced(module, replaced, *values[:num_args], **named)

    if _is_compiling():  # the compiler knows what a recomputation may change
        return checkpoint(forward, *values, use_reentrant=False)
    run = _Run(module, forward)
    outputs = checkpoint(run, *values, use_reentrant=False)
    run.drop_unchanged()
    return outputs


class _Run:
    """One forward pass and its recomputations, which begin with the same buffers."""

    def __init__(self, module: nn.Module, forward: Callable[..., Any]) -> None:
        self._forward, self._has_run = forward, False
        # Where each buffer is registered.
        self._places = [
            (part, name, buffer)
            for part in module.modules()
            if not isinstance(part, torch.jit.ScriptModule)
            for name, buffer in part.named_buffers(recurse=False)
        ]
        buffers = {id(buffer): buffer for _, _, buffer in self._places}  # one may be in two places
        self._versions = {key: version_of(buffer) for key, buffer in buffers.items()}
        self._copies = {key: buffer.detach().clone() for key, buffer in buffers.items()}

    def drop_unchanged(self) -> None:
        """Drop the copies of large buffers that the forward did not change, such as masks."""
        for _, _, buffer in self._places:
            is_same = version_of(buffer) == self._versions[id(buffer)]
            if is_same and buffer.numel() > _MAX_KEPT:
                self._copies.pop(id(buffer), None)

    def __call__(self, *values: Any) -> Any:
        if not self._has_run:
            self._has_run = True
            return self._forward(*values)
        current = [(part, name, getattr(part, name)) for part, name, _ in self._places]
        # Copied again: with retain_graph=True there is more than one recomputation.
        copies = {key: copy.clone() for key, copy in self._copies.items()}
        try:
            for part, name, buffer in self._places:
                setattr(part, name, copies.get(id(buffer), buffer))
            return self._forward(*values)
        finally:
            for part, name, value in current:
                setattr(part, name, value)
