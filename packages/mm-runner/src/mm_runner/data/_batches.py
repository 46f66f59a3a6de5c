"""Batches: collating samples, and functions over all tensors, however they are nested."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence  # a tuple, of which a part must not be moved

from mm_runner.errors import ConfigError

__all__ = ["map_tensors", "pseudo_collate"]


def pseudo_collate(batch: Sequence[Any]) -> Any:
    """Regroup samples field by field without stacking their tensors.

    Samples of different sizes fit in one batch this way. For stacked tensors use
    ``collate_fn=dict(type='default_collate')``.

    Args:
        batch: Samples of equal structure.

    Returns:
        The structure of one sample, with a list of the samples' values at each leaf.

    Raises:
        ConfigError: If the samples differ in structure.

    Example:
        >>> pseudo_collate([{"x": 1, "y": (2, 3)}, {"x": 4, "y": (5, 6)}])
        {'x': [1, 4], 'y': ([2, 5], [3, 6])}
    """
    first = batch[0]
    if isinstance(first, Mapping):
        return {key: pseudo_collate([_field(sample, key) for sample in batch]) for key in first}
    if isinstance(first, (list, tuple)):
        fields = [pseudo_collate(values) for values in zip(*_of_one_length(batch), strict=True)]
        # A named tuple takes them one by one.
        return type(first)(*fields) if hasattr(first, "_fields") else type(first)(fields)
    return list(batch)


def _field(sample: Any, key: Any) -> Any:
    if not isinstance(sample, Mapping) or key not in sample:
        held = (
            ", ".join(map(repr, sample)) if isinstance(sample, Mapping) else type(sample).__name__
        )
        raise ConfigError(
            f"pseudo_collate: the first sample of a batch has {key!r}, another one has {held}. Let "
            "all samples have the same keys, or give a collate_fn of your own."
        )
    return sample[key]


def _of_one_length(batch: Sequence[Any]) -> Sequence[Any]:
    lengths = {len(sample) if isinstance(sample, (list, tuple)) else None for sample in batch}
    if len(lengths) > 1:
        raise ConfigError(
            f"pseudo_collate: the samples of a batch have {lengths} parts. Let all have as many, "
            "put what varies into a tensor, or give a collate_fn of your own."
        )
    return batch


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
