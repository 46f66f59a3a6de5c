"""One number out of the results of a validation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mm_runner.errors import ConfigError, did_you_mean
from mm_runner.registry import short_repr

__all__ = ["is_score", "score_of"]


def is_score(value: Any) -> bool:
    """Tell whether ``value`` is a number, and no table or text, which a metric may report too."""
    return isinstance(value, (int, float)) or getattr(value, "ndim", None) == 0


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
    if not is_score(metrics[name]):
        raise ConfigError(
            f"{where}: {name!r} was asked for, and the validation reported "
            f"{short_repr(metrics[name])} for it; a number is needed."
        )
    return float(metrics[name])
