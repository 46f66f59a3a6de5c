"""Bring what a module gets, and what it holds, from half precision to float32."""

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

_HALF_DTYPES = frozenset({torch.float16, torch.bfloat16})


def to_float32(value: Any) -> Any:
    """Cast float16 and bfloat16 tensors in ``value``, which may be nested, to float32.

    Looks into tuples, lists, dicts and dataclasses. What holds nothing to cast is returned itself;
    what does is copied, never changed. Gradients flow back through the casts.
    """
    if isinstance(value, Tensor):
        return value.float() if value.dtype in _HALF_DTYPES else value
    if isinstance(value, (tuple, list)):
        return _cast_sequence(value)
    if isinstance(value, dict):
        return _cast_entries(value, value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _cast_fields(value)
    return value


def _cast_sequence(values: Any) -> Any:
    cast = [to_float32(value) for value in values]
    if all(new is old for new, old in zip(cast, values, strict=True)):
        return values
    # A named tuple takes its fields one by one, other tuples and lists an iterable.
    return values._make(cast) if hasattr(values, "_make") else type(values)(cast)


def _cast_entries(owner: Any, entries: Mapping[Any, Any]) -> Any:
    cast = {key: to_float32(value) for key, value in entries.items()}
    changed = {key: value for key, value in cast.items() if value is not entries[key]}
    if not changed:
        return owner
    if type(owner) is dict:  # keyword arguments: no compiler looks into copy.copy
        return cast
    copied = copy.copy(owner)  # keeps the class, its order and its defaults
    for key, value in changed.items():
        copied[key] = value
    return copied


def _cast_fields(owner: Any) -> Any:
    copied = None
    for field in dataclasses.fields(owner):
        value = getattr(owner, field.name, None)
        cast = to_float32(value)
        if cast is not value:
            copied = copy.copy(owner) if copied is None else copied
            object.__setattr__(copied, field.name, cast)  # also of a frozen one
    return owner if copied is None else copied


def holds_half_weights(module: nn.Module) -> bool:
    """Whether a parameter or buffer is in half precision now, as the forward would see it."""
    for holder in module.modules():
        for tensors in _weights_of(holder):
            for tensor in tensors.values():
                if tensor is not None and tensor.dtype in _HALF_DTYPES:
                    return True
    return False


@contextmanager
def float32_weights(module: nn.Module) -> Iterator[None]:
    """Let ``module`` see its half-precision parameters and buffers as float32 within the block.

    Gradients flow back through the casts; what is written to a buffer is written back.
    """
    swaps = _cast_weights(module)
    _refresh_flat_weights(module)
    try:
        yield
    finally:
        for swap in swaps:
            swap.undo()
        _refresh_flat_weights(module)


class _Swap(NamedTuple):
    """A weight that its module, for now, sees in float32."""

    tensors: dict[str, Any]
    name: str
    original: Tensor
    cast: Tensor
    is_buffer: bool

    def undo(self) -> None:
        current = self.tensors.get(self.name)
        if self.is_buffer and isinstance(current, Tensor):
            # Always: that a kernel wrote running statistics in place leaves no mark on them.
            with torch.no_grad():
                self.original.copy_(current)
            current = self.cast
        # A sharded module that has freed its weights meanwhile has put others in their place.
        if current is self.cast:
            self.tensors[self.name] = self.original


def _cast_weights(module: nn.Module) -> list[_Swap]:
    casts: dict[int, Tensor] = {}  # a tied weight is cast once
    swaps: list[_Swap] = []
    for holder in module.modules():
        for is_buffer, tensors in enumerate(_weights_of(holder)):
            for name, original in tensors.items():
                if original is not None and original.dtype in _HALF_DTYPES:
                    cast = casts.setdefault(id(original), original.float())
                    swaps.append(_Swap(tensors, name, original, cast, bool(is_buffer)))
    for swap in swaps:
        swap.tensors[swap.name] = swap.cast
    return swaps


def _weights_of(module: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the module's own parameters and buffers, to be read and replaced."""
    return module._parameters, module._buffers  # noqa: SLF001 - there is no public way to replace


def _refresh_flat_weights(module: nn.Module) -> None:
    """Tell recurrent layers, which keep a list of their weights besides."""
    for holder in module.modules():
        if isinstance(holder, nn.RNNBase):
            holder._flat_weights = [  # noqa: SLF001
                getattr(holder, name)
                for name in holder._flat_weights_names  # noqa: SLF001
            ]
