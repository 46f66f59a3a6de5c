"""Functions over all tensors of a batch, however it is nested."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from torch import Tensor

__all__ = ["map_tensors"]


def map_tensors(data: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Return ``data`` with ``function`` applied to its tensors; containers keep their type.

    Example:
        >>> map_tensors({"x": [torch.ones(2)], "name": "a"}, torch.neg)
        {'x': [tensor([-1., -1.])], 'name': 'a'}
    """
    if isinstance(data, Tensor):
        return function(data)
    if isinstance(data, (dict, Mapping)):  # a dict first: the cheaper question
        return _map_items(data, function)
    if isinstance(data, tuple) and hasattr(data, "_fields"):  # a named tuple
        return type(data)(*(map_tensors(value, function) for value in data))
    if isinstance(data, (list, tuple)):
        return type(data)(map_tensors(value, function) for value in data)
    return data


def _map_items(data: Mapping[Any, Any], function: Callable[[Tensor], Tensor]) -> Any:
    mapped = {key: map_tensors(value, function) for key, value in data.items()}
    if type(data) is dict:
        return mapped
    if not isinstance(data, MutableMapping):
        return type(data)(mapped)  # type: ignore[call-arg]
    same_kind = copy.copy(data)  # a defaultdict, or a kind with more to it than its items
    same_kind.update(mapped)
    return same_kind
