"""Collate functions besides torch's default one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["pseudo_collate"]


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
    if isinstance(first, Mapping):
        return {key: pseudo_collate([sample[key] for sample in batch]) for key in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):  # a named tuple
        return type(first)(*map(pseudo_collate, zip(*batch, strict=True)))
    if isinstance(first, (list, tuple)):
        return type(first)(pseudo_collate(values) for values in zip(*batch, strict=True))
    return list(batch)
