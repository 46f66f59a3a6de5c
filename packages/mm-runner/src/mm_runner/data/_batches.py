"""Batches: collate samples, and apply functions to all tensors of nested containers."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence  # a tuple, of which a part must not be moved
from torch.utils.data import default_collate as torch_collate

from mm_runner.registry import FUNCTIONS, build_from_cfg


def pseudo_collate(batch: Sequence[Any]) -> Any:
    """Regroup samples field by field without stacking their tensors.

    Samples of different sizes fit in one batch this way. For stacked tensors use
    ``collate_fn=dict(type='default_collate')``.

    Args:
        batch: Samples of equal structure.

    Returns:
        The structure of one sample, with a list of the samples' values at each leaf.

    Example:
        >>> pseudo_collate([{"x": 1, "y": (2, 3)}, {"x": 4, "y": (5, 6)}])
        {'x': [1, 4], 'y': ([2, 5], [3, 6])}
    """
    first = batch[0]
    for kind in (Mapping, (list, tuple)):
        if isinstance(first, kind) and not all(isinstance(sample, kind) for sample in batch):
            raise TypeError("The samples of a batch differ in structure.")
    if isinstance(first, Mapping):
        return {key: pseudo_collate([sample[key] for sample in batch]) for key in first}
    if isinstance(first, (list, tuple)):
        fields = [pseudo_collate(values) for values in zip(*batch, strict=True)]
        # A named tuple takes them one by one.
        return type(first)(*fields) if hasattr(first, "_fields") else type(first)(fields)
    return list(batch)


def default_collate(batch: Sequence[Any]) -> Any:
    """Stack the samples of a batch as :func:`torch.utils.data.default_collate` does.

    Objects that torch cannot stack, such as MMEngine's data elements, stay in a list.

    Args:
        batch: Samples of equal structure.

    Raises:
        TypeError: If a sample is ``None`` or of another built-in type without a rule.

    Example:
        >>> default_collate([{"x": torch.ones(2)}, {"x": torch.zeros(2)}])
        {'x': tensor([[1., 1.],
                [0., 0.]])}
    """
    first = batch[0]
    if type(first) is dict:
        return {key: default_collate([sample[key] for sample in batch]) for key in first}
    try:
        return torch_collate(list(batch))
    except TypeError:
        if isinstance(first, (Mapping, Sequence)) or type(first).__module__ == "builtins":
            raise
        return list(batch)


def map_tensors(
    data: Any,
    function: Callable[[Tensor], Any],
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
        mapped = {key: map_tensors(value, function, other) for key, value in data.items()}
        if type(data) is dict:
            return mapped
        same_kind: Any = copy.copy(data)  # a defaultdict, or a kind with more to it than its items
        same_kind.update(mapped)
        return same_kind
    if isinstance(data, (list, tuple)) and not isinstance(data, PackedSequence):
        values = [map_tensors(value, function, other) for value in data]
        return type(data)(*values) if hasattr(data, "_fields") else type(data)(values)
    return data if other is None else other(data)


def as_channels_last(tensor: Tensor) -> Tensor:
    """Return ``tensor``, laid out with channels last if it can be a batch of images."""
    if tensor.ndim == 4 and tensor.is_floating_point() and is_plain(tensor):
        return tensor.contiguous(memory_format=torch.channels_last)
    return tensor


def is_plain(tensor: Tensor) -> bool:
    """Return whether ``tensor`` is one block of memory, not a sparse or a nested one."""
    return tensor.layout is torch.strided and not tensor.is_nested


def resolve_function(function: Any) -> Any:
    """Resolve a function given as a name, as ``dict(type=name, **kwargs)``, or as itself.

    Of a class, such as a collator of Hugging Face, an object is made.
    """
    if isinstance(function, Mapping):
        kwargs = dict(function)
        component = resolve_function(kwargs.pop("type", None))
        if inspect.isclass(component):
            return build_from_cfg(function, FUNCTIONS)
        return functools.partial(component, **kwargs)
    return FUNCTIONS.get(function) if isinstance(function, str) else function
