"""Activation checkpointing of single modules, by ``torch.utils.checkpoint``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from mm_runner._torch_private import buffers_of, version_of
from mm_runner.errors import ConfigError

from ._wrapped_forward import WrappedForward, forward_wrapper

__all__ = ["checkpoint_module", "checkpointed_names"]

# Buffers of up to this many numbers are copied before each checkpointed forward.
_MAX_COPIED = 1 << 16

_is_compiling: Callable[[], bool] = getattr(
    getattr(torch, "compiler", None), "is_compiling", lambda: False
)


def checkpoint_module(module: nn.Module, name: str) -> None:
    """Let ``module`` recompute its activations in the backward pass, in place."""
    _CheckpointedForward(module, name)


def checkpointed_names(model: nn.Module) -> list[str]:
    """Return the names of the checkpointed modules in ``model``."""
    return [
        name
        for name, module in model.named_modules()
        if forward_wrapper(module, _CheckpointedForward)
    ]


class _CheckpointedForward(WrappedForward):
    def __init__(self, module: nn.Module, name: str) -> None:
        super().__init__(module)
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.call_replaced(*args, **kwargs)
        # By position: torch's function has keyword arguments too, and finds the device by these.
        names, values = tuple(kwargs), (*args, *kwargs.values())

        def forward(*values: Any) -> Any:
            num_args = len(values) - len(names)
            named = dict(zip(names, values[num_args:]))  # noqa: B905 - compiled by old dynamo
            return self.call_replaced(*values[:num_args], **named)

        if _is_compiling():  # the compiler knows what a recomputation may change
            return checkpoint(forward, *values, use_reentrant=False)
        run = _Run(self.module, forward)
        outputs = checkpoint(run, *values, use_reentrant=False)
        run.check_large_buffers(self._name)
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
            for name, buffer in buffers_of(part)
        ]
        buffers = {id(buffer): buffer for _, _, buffer in self._places}  # one may be in two places
        self._copies = {
            key: buffer.detach().clone()
            for key, buffer in buffers.items()
            if buffer.numel() <= _MAX_COPIED
        }
        large = (buffer for key, buffer in buffers.items() if key not in self._copies)
        self._large = [(buffer, version_of(buffer)) for buffer in large]

    def __call__(self, *values: Any) -> Any:
        if not self._has_run:
            self._has_run = True
            return self._forward(*values)
        with self._buffers_of_forward():
            return self._forward(*values)

    def check_large_buffers(self, name: str) -> None:
        """Raise if the forward changed a buffer that was not copied."""
        if any(version_of(buffer) != version for buffer, version in self._large):
            raise ConfigError(
                f"activation_checkpointing: {name!r} changes a buffer of more than "
                f"{_MAX_COPIED:,} numbers in its forward, which is too large to be copied in each "
                "step. Change it in another module, or do not name this one."
            )

    @contextmanager
    def _buffers_of_forward(self) -> Iterator[None]:
        """Put copies in place of the buffers, with the values from before the forward."""
        current = [(part, name, getattr(part, name)) for part, name, _ in self._places]
        # Copied again: with retain_graph=True there is more than one recomputation.
        copies = {key: copy.clone() for key, copy in self._copies.items()}
        try:
            for part, name, buffer in self._places:
                setattr(part, name, copies.get(id(buffer), buffer))
            yield
        finally:
            for part, name, value in current:
                setattr(part, name, value)
