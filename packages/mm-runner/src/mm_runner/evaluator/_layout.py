"""Divide the predictions for a batch into samples, and join samples again.

Predictions are a list with an entry for each sample, of any form; a tensor of shape
``(batch, ...)``; ``None``; or a tuple or dict of these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mm_runner.errors import ConfigError
from mm_runner.registry import short_repr

__all__ = ["Layout", "join", "layout_of", "select", "size_of", "split"]

# "rows" for a tensor, "list", None; or a tuple or dict of these.
Layout = Any


def layout_of(predictions: Any) -> Layout:
    """Return the form of the predictions for a batch.

    Raises:
        ConfigError: If a part has no entry for each sample, or they have different numbers.

    Example:
        >>> layout_of((torch.ones(2, 3), ["a", "b"]))
        ('rows', 'list')
    """
    size_of(predictions)
    return _map(predictions, lambda part: "rows" if isinstance(part, Tensor) else "list")


def size_of(predictions: Any) -> int:
    """Return the number of samples."""
    sizes: list[int] = []
    _map(predictions, lambda part: sizes.append(_length(part)))
    if len(set(sizes)) != 1:
        raise ConfigError(
            f"The predictions hold {' and '.join(map(str, sizes)) or 'no'} samples: "
            f"{short_repr(predictions)}. Let each part have one entry per sample; a list holds one "
            "of any form for each."
        )
    return sizes[0]


def split(predictions: Any, *, with_copies: bool = True) -> list[Any]:
    """Return the predictions for each sample."""

    def entry(part: Any, index: int) -> Any:
        one = part[index]
        return one.clone() if with_copies and isinstance(part, Tensor) else one

    return [
        _map(predictions, lambda part, i=index: entry(part, i))  # type: ignore[misc]
        for index in range(size_of(predictions))
    ]


def join(samples: Sequence[Any], layout: Layout) -> Any:
    """Return the predictions of which ``samples`` are the entries, the inverse of :func:`split`."""
    if isinstance(layout, tuple):
        return tuple(join([one[i] for one in samples], part) for i, part in enumerate(layout))
    if isinstance(layout, Mapping):
        return {key: join([one[key] for one in samples], part) for key, part in layout.items()}
    if layout is None:
        return None
    if layout == "rows" and len({(row.shape, row.dtype) for row in samples}) == 1:
        return torch.stack(list(samples))
    return list(samples)


def select(predictions: Any, indices: Sequence[int]) -> Any:
    """Return the predictions for some of the samples, in the same layout."""
    rows = torch.tensor(indices, dtype=torch.long)
    return _map(
        predictions,
        lambda part: part[rows] if isinstance(part, Tensor) else [part[i] for i in indices],
    )


def _map(part: Any, function: Callable[[Any], Any]) -> Any:
    """Return the structure with the results of ``function`` for each tensor and list in it."""
    if isinstance(part, tuple):
        return tuple(_map(one, function) for one in part)
    if isinstance(part, Mapping):
        return {key: _map(one, function) for key, one in part.items()}
    return None if part is None else function(part)


def _length(part: Any) -> int:
    if isinstance(part, list) or (isinstance(part, Tensor) and part.ndim):
        return len(part)
    raise ConfigError(
        f"predictions: {short_repr(part)} has no entry for each sample. Let forward(mode='predict')"
        " return a list with one entry per sample, or tensors with one row per sample."
    )
