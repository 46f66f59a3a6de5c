"""The newest values of one scalar."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ._host_numbers import as_numbers

__all__ = ["ScalarWindow"]


class ScalarWindow:
    """What hooks ask of one scalar; each question waits for the device.

    Args:
        values: Numbers, or tensors of one element, the oldest first.

    Example:
        >>> window = ScalarWindow([4.0, 1.0, 2.0])
        >>> window.current(), window.mean(2), window.max()
        (2.0, 1.5, 4.0)
    """

    def __init__(self, values: Iterable[Any]) -> None:
        self._values = list(values)

    def current(self) -> float:
        """Return the newest value."""
        return self._numbers(1)[0]

    def mean(self, window_size: int | None = None) -> float:
        """Return the mean of the newest ``window_size`` values, by default of all that are kept."""
        return self._of_newest(window_size, lambda values: sum(values) / len(values))

    def max(self, window_size: int | None = None) -> float:
        """Return the greatest of these."""
        return self._of_newest(window_size, max)

    def min(self, window_size: int | None = None) -> float:
        """Return the least of these."""
        return self._of_newest(window_size, min)

    def _of_newest(
        self, window_size: int | None, reduce: Callable[[Sequence[float]], float]
    ) -> float:
        return reduce(self._numbers(window_size or 0))

    def _numbers(self, count: int) -> list[float]:
        """Return the newest ``count`` values, all for 0; they come to the host at once."""
        return [float(number) for number in as_numbers(self._values[-count:])]
