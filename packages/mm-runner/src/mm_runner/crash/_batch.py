"""What a batch looked like: shapes and dtypes, no values."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from torch import Tensor

__all__ = ["describe_batch", "last_batch"]

_NAMES = ("batch", "data_batch")
_MOST_ITEMS, _MOST_LEVELS = 20, 8


def last_batch(trace: TracebackType | None) -> Any:
    """Return the batch that the failing step was given, ``None`` if it was not in a step.

    It is looked for among the variables of the failed calls: keeping it aside would cost every
    step. A loop of the user's own is found if it calls the batch as ours do.

    Args:
        trace: Of the exception.
    """
    found = None
    while trace is not None:
        values = trace.tb_frame.f_locals
        found = next((values[name] for name in _NAMES if values.get(name) is not None), found)
        trace = trace.tb_next
    return found


def describe_batch(value: Any, level: int = 0) -> Any:
    """Return the structure of ``value`` in primitives.

    Example:
        >>> describe_batch({"x": torch.ones(2, 3), "names": ["a"]})
        {'x': {'shape': [2, 3], 'dtype': 'float32', 'device': 'cpu'}, 'names': ['str']}
    """
    if isinstance(value, Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return {"shape": list(value.shape), "dtype": dtype, "device": str(value.device)}
    if level == _MOST_LEVELS or not isinstance(value, (Mapping, list, tuple)):
        shape = getattr(value, "shape", None)
        return type(value).__name__ + (f" of shape {tuple(shape)}" if shape is not None else "")
    if isinstance(value, Mapping):
        return {str(key): describe_batch(item, level + 1) for key, item in value.items()}
    items = [describe_batch(item, level + 1) for item in value[:_MOST_ITEMS]]
    left = len(value) - len(items)
    return [*items, f"... {left} more"] if left else items
