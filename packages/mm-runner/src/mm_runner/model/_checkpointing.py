"""Activation checkpointing of named modules, by ``torch.utils.checkpoint``."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from mm_runner._torch_private import version_of
from mm_runner.errors import ConfigError, did_you_mean
from mm_runner.registry import need_names

_KEY = "activation_checkpointing"
# Copies of smaller buffers are always kept: torch does not count changes by batch normalization.
_MAX_KEPT = 1 << 16
_compiler: Any = getattr(torch, "compiler", None)


def find_checkpointed(model: nn.Module, patterns: Any) -> list[nn.Module]:
    """Return the modules that ``patterns`` name; the outermost of nested ones.

    Raises:
        ConfigError: If one matches no module with a forward.
    """
    modules = {
        name: module
        for name, module in model.named_modules(remove_duplicate=False)
        # A list or dict of modules has no forward.
        if name and getattr(module.forward, "__func__", None) is not nn.Module.forward
    }
    chosen: list[str] = []
    for pattern in need_names(patterns, _KEY):
        found = [name for name in modules if name == pattern or fnmatchcase(name, pattern)]
        if not found:
            kind, hint = type(model).__name__, did_you_mean(pattern, modules)
            raise ConfigError(
                f"{_KEY}: {pattern!r} names no module of {kind} with a forward.{hint}"
            )
        chosen += found
    outermost = (
        modules[name]
        for name in chosen
        if not any(name.startswith(f"{other}.") for other in chosen)
    )
    return list(dict.fromkeys(outermost))  # a shared module has several names


def apply_activation_checkpointing(model: nn.Module, patterns: Any) -> None:
    """Checkpoint the modules that ``patterns`` name, and no longer those of an earlier call.

    Args:
        model: Not wrapped and not compiled; each module stays the same object.
        patterns: A name, a list of names and patterns, or ``None``, which only undoes.

    Raises:
        ConfigError: If a pattern matches no module that has a forward.
    """
    found = find_checkpointed(model, patterns)
    for module in model.modules():
        forward = vars(module).get("forward")
        if isinstance(forward, partial) and forward.func is _checkpointed_forward:
            del vars(module)["forward"]
            if forward.args[1] is not None:
                vars(module)["forward"] = forward.args[1]
    for module in found:
        # A partial of a function, as copies and pickles of it refer to their own module.
        own = vars(module).get("forward")
        vars(module)["forward"] = partial(_checkpointed_forward, module, own)


def _checkpointed_forward(module: nn.Module, own: Any, *args: Any, **kwargs: Any) -> Any:
    """Recompute the activations of ``module`` in the backward pass; its buffers change once."""
    # ``own`` is a forward that was set on the module itself.
    inner = partial(type(module).forward, module) if own is None else own
    if not torch.is_grad_enabled():
        return inner(*args, **kwargs)
    # By position: torch's function has keyword arguments too, and finds the device by these.
    names, values = tuple(kwargs), (*args, *kwargs.values())

    def forward(*values: Any) -> Any:
        num_args = len(values) - len(names)
        named = dict(zip(names, values[num_args:]))  # noqa: B905 - compiled by old dynamo
        return inner(*values[:num_args], **named)

    if hasattr(_compiler, "is_compiling") and _compiler.is_compiling():
        # The compiler knows what a recomputation may change.
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
