"""Tensors in nested arguments (tuples, lists, dicts, dataclasses): find them, cast them."""

import copy
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

HALF_DTYPES = frozenset({torch.float16, torch.bfloat16})


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in ``value``, in any depth."""
    if isinstance(value, Tensor):
        yield value
        return
    for item in _parts(value).values():
        yield from tensors_in(item)


def to_float32(value: Any) -> Any:
    """Cast float16 and bfloat16 tensors in ``value`` to float32; gradients flow back.

    A container without such tensors is returned itself, others are copied, never changed.
    """
    if isinstance(value, Tensor):
        return value.float() if value.dtype in HALF_DTYPES else value
    parts = _parts(value)
    cast = {key: to_float32(part) for key, part in parts.items()}
    if all(cast[key] is part for key, part in parts.items()):
        return value
    if isinstance(value, (tuple, list)):
        # A named tuple takes its fields one by one, other tuples and lists an iterable.
        make: Any = getattr(value, "_make", type(value))
        return make(cast.values())
    if type(value) is dict:  # keyword arguments: no compiler traces copy.copy
        return cast
    copied = copy.copy(value)
    for key, part in cast.items():
        if isinstance(value, dict):
            copied[key] = part
        else:
            object.__setattr__(copied, key, part)  # also of a frozen dataclass
    return copied


def _parts(value: Any) -> dict[Any, Any]:
    if isinstance(value, (tuple, list)):
        return dict(enumerate(value))
    if isinstance(value, dict):
        return dict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name, None) for one in dataclasses.fields(value)}
    return {}
