"""Predictions for a batch, sample by sample and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mm_runner.errors import ConfigError
from mm_runner.registry import short_repr

__all__ = ["Layout", "join", "layout_of", "select", "size_of", "split"]

# What a part of the predictions is: a tensor with a row for each sample, a list with an entry for
# each, nothing; or a tuple or dict of such parts.
Layout = Any
_ROWS, _LIST, _NOTHING = "rows", "list", "nothing"


def layout_of(predictions: Any) -> Layout:
    """Return how the samples lie in what a step predicted for a batch.

    Args:
        predictions: A list with an entry for each sample, of any form; a tensor of shape
            ``(batch, ...)``; ``None``; or a tuple or dict of these.

    Raises:
        ConfigError: If a part has no entry for each sample, or they have different numbers.

    Example:
        >>> layout_of((torch.ones(2, 3), ["a", "b"]))
        ('rows', 'list')
    """
    layout = _layout(predictions, "predictions")
    sizes = dict(_sizes(predictions, layout, "predictions"))
    if len(set(sizes.values())) > 1:
        told = ", ".join(f"{where} {size}" for where, size in sizes.items())
        raise ConfigError(
            f"The parts of the predictions have different numbers of samples: {told}. Let each "
            "have one entry per sample; a list holds one of any form for each."
        )
    if not sizes:
        raise ConfigError(f"The predictions hold no samples: {short_repr(predictions)}.")
    return layout


def size_of(predictions: Any) -> int:
    """Return of how many samples these are the predictions."""
    return next(size for _, size in _sizes(predictions, layout_of(predictions), ""))


def split(predictions: Any, layout: Layout, *, with_copies: bool = True) -> list[Any]:
    """Return the predictions for each sample.

    Args:
        predictions: As a step returned them.
        layout: Of these.
        with_copies: Whether rows of tensors have memory of their own: a view would keep, and take
            along into a file, the rows of the whole batch.
    """
    size = next(size for _, size in _sizes(predictions, layout, ""))
    return [_taken(predictions, partial(_entry, index, with_copies)) for index in range(size)]


def join(samples: Sequence[Any], layout: Layout) -> Any:
    """Return the predictions of which ``samples`` are the entries, the inverse of :func:`split`.

    Rows of different shapes become a list.
    """
    if isinstance(layout, tuple):
        return tuple(join([one[i] for one in samples], part) for i, part in enumerate(layout))
    if isinstance(layout, Mapping):
        return {key: join([one[key] for one in samples], part) for key, part in layout.items()}
    if layout == _NOTHING:
        return None
    has_one_shape = len({(row.shape, row.dtype) for row in samples}) == 1 if layout == _ROWS else 0
    return torch.stack(list(samples)) if has_one_shape else list(samples)


def select(predictions: Any, indices: Sequence[int]) -> Any:
    """Return the predictions for some of the samples, in the same layout."""
    return _taken(
        predictions,
        lambda part: (
            part[torch.tensor(indices, dtype=torch.long)]
            if isinstance(part, Tensor)
            else [part[index] for index in indices]
        ),
    )


def _layout(part: Any, where: str) -> Layout:
    if isinstance(part, Tensor) and part.ndim:
        return _ROWS
    if isinstance(part, list):
        return _LIST
    if part is None:
        return _NOTHING
    if isinstance(part, tuple):
        return tuple(_layout(one, f"{where}[{index}]") for index, one in enumerate(part))
    if isinstance(part, Mapping):
        return {key: _layout(one, f"{where}.{key}") for key, one in part.items()}
    raise ConfigError(
        f"{where}: {short_repr(part)} has no entry for each sample. Let forward(mode='predict') "
        "return a list with one entry per sample, or tensors with one row per sample."
    )


def _sizes(part: Any, layout: Layout, where: str) -> Iterator[tuple[str, int]]:
    if isinstance(layout, tuple):
        for index, inner in enumerate(layout):
            yield from _sizes(part[index], inner, f"{where}[{index}]")
    elif isinstance(layout, Mapping):
        for key, inner in layout.items():
            yield from _sizes(part[key], inner, f"{where}.{key}")
    elif layout != _NOTHING:
        yield where, len(part)


def _taken(part: Any, take: Callable[[Any], Any]) -> Any:
    """Return the structure of ``part`` with what ``take`` makes of each tensor and list in it."""
    if isinstance(part, tuple):
        return tuple(_taken(one, take) for one in part)
    if isinstance(part, Mapping):
        return {key: _taken(one, take) for key, one in part.items()}
    return None if part is None else take(part)


def _entry(index: int, with_copies: bool, part: Any) -> Any:  # noqa: FBT001
    entry = part[index]
    return entry.clone() if with_copies and isinstance(part, Tensor) else entry
