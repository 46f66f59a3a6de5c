"""Tensors in nested inputs and outputs."""

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

Named = tuple[str, Tensor]


def items_of(name: str, value: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield name, key and value of each item of a container; nothing for other values."""
    if isinstance(value, Mapping):
        yield from ((f"{name}[{key!r}]", key, item) for key, item in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((f"{name}[{index}]", index, item) for index, item in enumerate(value))
    elif is_dataclass(value) and not isinstance(value, type):
        for each in fields(value):
            yield f"{name}.{each.name}", each.name, getattr(value, each.name, None)


def find_tensors(name: str, value: Any) -> Iterator[Named]:
    """Yield the tensors in ``value``, with names such as ``outputs['loss']``."""
    if isinstance(value, Tensor):
        yield name, value
    for item_name, _, item in items_of(name, value):
        yield from find_tensors(item_name, item)


def map_tensors(function: Callable[[str, Tensor], Tensor], name: str, value: Any) -> Any:
    """Return ``value`` with ``function(name, tensor)`` in place of its tensors.

    Containers are copied; objects that are neither tensors, containers nor dataclasses are kept.
    """
    if isinstance(value, Tensor):
        return function(name, value)
    found = [(key, map_tensors(function, n, item)) for n, key, item in items_of(name, value)]
    if not found:
        return value
    items = [item for _, item in found]
    if isinstance(value, tuple):
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    copied = copy(value)
    if isinstance(value, (Mapping, list)):
        for key, item in found:
            copied[key] = item
    else:
        for key, item in found:
            object.__setattr__(copied, key, item)  # it may be frozen
    return copied
