"""Functions over all tensors of a batch, however it is nested."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence  # a tuple, of which a part must not be moved

__all__ = ["map_tensors"]


def map_tensors(
    data: Any,
    function: Callable[[Tensor], Tensor],
    other: Callable[[Any], Any] | None = None,
) -> Any:
    """Return ``data`` with ``function`` applied to its tensors; containers keep their type.

    Args:
        data: Tensors and anything else, in mappings, lists and tuples.
        function: Of a tensor.
        other: Of whatever else is neither a tensor nor such a container; by default it stays.

    Example:
        >>> map_tensors({"x": [torch.ones(2)], "name": "a"}, torch.neg)
        {'x': [tensor([-1., -1.])], 'name': 'a'}
    """
    if isinstance(data, Tensor):
        return function(data)
    if isinstance(data, (dict, Mapping)):  # a dict first: the cheaper question
        return _map_items(data, function, other)
    if isinstance(data, (list, tuple)) and not isinstance(data, PackedSequence):
        values = [map_tensors(value, function, other) for value in data]
        return type(data)(*values) if hasattr(data, "_fields") else type(data)(values)
    return data if other is None else other(data)


def _map_items(
    data: Mapping[Any, Any],
    function: Callable[[Tensor], Tensor],
    other: Callable[[Any], Any] | None,
) -> Any:
    mapped = {key: map_tensors(value, function, other) for key, value in data.items()}
    if type(data) is dict:
        return mapped
    if not isinstance(data, MutableMapping):
        return type(data)(mapped)  # type: ignore[call-arg]
    same_kind = copy.copy(data)  # a defaultdict, or a kind with more to it than its items
    same_kind.update(mapped)
    return same_kind
