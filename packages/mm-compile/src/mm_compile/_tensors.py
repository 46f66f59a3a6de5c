"""Tensors in nested inputs and outputs."""

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

Named = tuple[str, Tensor]


def find_tensors(name: str, value: Any) -> list[Named]:
    """Return the tensors in ``value``, with names such as ``outputs['loss']``."""
    found: list[Named] = []

    def note(name: str, tensor: Tensor) -> Tensor:
        found.append((name, tensor))
        return tensor

    map_tensors(note, name, value)
    return found


def map_tensors(function: Callable[[str, Tensor], Tensor], name: str, value: Any) -> Any:
    """Return ``value`` with ``function(name, tensor)`` in place of its tensors.

    Containers are copied; objects that are neither tensors, containers nor dataclasses are kept.
    """
    if isinstance(value, Tensor):
        return function(name, value)
    if isinstance(value, Mapping):
        items = {
            key: map_tensors(function, f"{name}[{key!r}]", item) for key, item in value.items()
        }
    elif isinstance(value, (list, tuple)):
        items = {i: map_tensors(function, f"{name}[{i}]", item) for i, item in enumerate(value)}
    elif is_dataclass(value) and not isinstance(value, type):
        names = [each.name for each in fields(value) if hasattr(value, each.name)]
        items = {key: map_tensors(function, f"{name}.{key}", getattr(value, key)) for key in names}
    else:
        return value
    if isinstance(value, tuple):
        new = list(items.values())
        return type(value)(*new) if hasattr(value, "_fields") else type(value)(new)
    copied = copy(value)
    for key, item in items.items():
        if isinstance(value, (Mapping, list)):
            copied[key] = item
        else:
            object.__setattr__(copied, key, item)  # it may be frozen
    return copied
