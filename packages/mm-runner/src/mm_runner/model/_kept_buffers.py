"""Buffers while a forward is repeated: what it did to them the first time is all that counts."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ._batch_norms import is_batch_norm

__all__ = ["BufferCopy", "changed_buffers", "copy_buffers", "repeating"]


class BufferCopy(NamedTuple):
    """The values of a buffer, and torch's count of changes to it."""

    values: Tensor
    version: int


def copy_buffers(module: nn.Module, names: Collection[str] | None) -> dict[str, BufferCopy]:
    """Copy the buffers that a repetition needs as they are before the forward.

    Args:
        module: About to run.
        names: Those that a forward changes; ``None`` for all that it may change and depend on.
    """
    if names is not None and not names:  # nearly always
        return {}
    return {
        name: BufferCopy(buffer.detach().clone(), buffer._version)  # noqa: SLF001
        for part, name, _, buffer in _buffers(module)
        # In training, what a batch norm computes does not depend on the statistics it updates.
        if (not is_batch_norm(part) if names is None else name in names)
    }


def changed_buffers(module: nn.Module, before: dict[str, BufferCopy]) -> frozenset[str]:
    """Return names of those in ``before`` that were changed since; it waits for the device."""
    now = {name: buffer for _, name, _, buffer in _buffers(module)}
    return frozenset(
        name for name, copy in before.items() if name not in now or _is_changed(copy, now[name])
    )


def _is_changed(copy: BufferCopy, buffer: Tensor) -> bool:
    # What some kernels and ``buffer.data`` change is not counted; what is may be equal for once.
    is_counted = copy.version != buffer._version  # noqa: SLF001
    return is_counted or not torch.equal(copy.values, buffer)


@contextmanager
def repeating(module: nn.Module, before: dict[str, BufferCopy]) -> Iterator[None]:
    """Let ``module`` see and change stand-ins for its buffers.

    Args:
        module: Runs in the context.
        before: Values that the forward began with, where it changes them and depends on them.
    """
    replaced = [
        # In no other way than by being replaced: autograd may hold what is changed in place.
        (part._buffers, own_name, buffer, _stand_in(part, buffer, before.get(name)))  # noqa: SLF001
        for part, name, own_name, buffer in _buffers(module)
        if part.training or not is_batch_norm(part)  # it only reads them
    ]
    try:
        for buffers, name, _, stand_in in replaced:
            buffers[name] = stand_in
        yield
    finally:  # torch ends a repetition by an exception, once it has what it needs
        for buffers, name, buffer, _ in replaced:
            buffers[name] = buffer


def _stand_in(part: nn.Module, buffer: Tensor, before: BufferCopy | None) -> Tensor:
    if before is None and buffer.is_floating_point() and is_batch_norm(part):
        return torch.empty_like(
            buffer
        )  # nothing is computed from it; but torch keeps it, as before
    return (buffer if before is None else before.values).detach().clone()


def _buffers(module: nn.Module) -> Iterator[tuple[nn.Module, str, str, Tensor]]:
    for prefix, part in module.named_modules():
        for name, buffer in part._buffers.items():  # noqa: SLF001 - where torch looks for them
            if buffer is not None and not buffer.requires_grad:
                yield part, f"{prefix}.{name}", name, buffer
