"""The epochs or steps that a validation follows."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from mm_runner.errors import ConfigError

__all__ = ["ValidationSchedule", "check_positive"]


class ValidationSchedule:
    """Tells after how many epochs, or steps, a validation is due.

    Args:
        begin: The first count that is followed by one.
        interval: Counts between two of them.
        dynamic_intervals: Pairs ``(count, interval)``: from that count on the other interval.
        last: The last count, which is always followed by one.

    Raises:
        ConfigError: If a number is not positive.

    Example:
        >>> schedule = ValidationSchedule(1, 4, [(6, 1)], last=8)
        >>> [count for count in range(1, 9) if schedule.is_due(count)]
        [4, 6, 7, 8]
    """

    def __init__(
        self,
        begin: int,
        interval: int,
        dynamic_intervals: Sequence[tuple[int, int]] | None,
        *,
        last: int,
    ) -> None:
        check_positive("val_begin", begin)
        check_positive("val_interval", interval)
        self.begin, self.last = begin, last
        changes = sorted(_checked_pairs(dynamic_intervals))
        self._counts = [0, *(count for count, _ in changes)]
        self._intervals = [interval, *(interval for _, interval in changes)]

    def interval_at(self, count: int) -> int:
        """Return the interval in force after ``count``."""
        return self._intervals[bisect_right(self._counts, count) - 1]

    def is_due(self, count: int) -> bool:
        """Return whether a validation follows ``count``."""
        if count == self.last:
            return True
        return count >= self.begin and count % self.interval_at(count) == 0

    def next_after(self, count: int) -> int:
        """Return the first count beyond ``count`` that a validation follows."""
        while count < self.last:
            interval = self.interval_at(count + 1)
            due = (max(count, self.begin - 1) // interval + 1) * interval
            change = next((one for one in self._counts if one > count + 1), self.last + 1)
            if due < change:
                return min(due, self.last)
            count = change - 1  # from there on the other interval
        return self.last


def check_positive(name: str, value: Any) -> None:
    """Check that an argument of a training loop is a positive integer.

    Raises:
        ConfigError: If it is not.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"train_cfg.{name}: a positive integer is needed, got {value!r}.")


def _checked_pairs(pairs: Any) -> list[tuple[int, int]]:
    checked = []
    for index, pair in enumerate(pairs or ()):
        if not isinstance(pair, Sequence) or len(pair) != 2:
            raise ConfigError(
                f"train_cfg.dynamic_intervals[{index}]: a pair (from when on, interval) is needed, "
                f"got {pair!r}."
            )
        for value in pair:
            check_positive(f"dynamic_intervals[{index}]", value)
        checked.append((pair[0], pair[1]))
    return checked
