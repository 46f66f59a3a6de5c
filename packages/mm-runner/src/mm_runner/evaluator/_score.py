"""Numbers out of the results of a validation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from mm_runner.errors import ConfigError, did_you_mean
from mm_runner.registry import short_repr

__all__ = ["as_number", "score_of"]


def as_number(value: Any) -> int | float | None:
    """Return a number, also that in an array or tensor of one element; ``None`` for all else."""
    size = value.numel() if isinstance(value, Tensor) else getattr(value, "size", None)
    if size == 1 and hasattr(value, "item"):
        value = value.item()
    return value if isinstance(value, (int, float)) else None


def score_of(metrics: Mapping[str, Any], name: str, where: str) -> float:
    """Return the metric ``name`` as a number.

    Args:
        metrics: As a validation reports them.
        name: Of the metric.
        where: The argument that asks for it, for messages.

    Raises:
        ConfigError: If it is not there, or no number.

    Example:
        >>> score_of({"accuracy": 1}, "accuracy", "EarlyStoppingHook.monitor")
        1.0
    """
    if name not in metrics:
        raise ConfigError(
            f"{where}: {name!r} was asked for; the validation reported "
            f"{', '.join(map(repr, metrics)) or 'nothing'}.{did_you_mean(name, metrics)}"
        )
    number = as_number(metrics[name])
    if number is None:
        raise ConfigError(
            f"{where}: {name!r} was asked for, and the validation reported "
            f"{short_repr(metrics[name])} for it; a number is needed."
        )
    return float(number)
