"""What a log line says of the scalars that were collected."""

from __future__ import annotations

import re
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from mm_dist import is_main_process
from mm_runner.errors import ConfigError, did_you_mean

from ._statistics import Statistic
from ._totals import Total, TotalledWindow

__all__ = ["LineValues"]

# Lines until a scalar that nobody has logged is told: some come with the first optimizer step.
_PATIENCE = 3


class LineValues:
    """Makes the numbers of a line: means over the newest values, and what was asked for besides.

    Args:
        window_size: How many of the newest values a mean is taken over.
        statistics: What else to say.
        mean_pattern: Names that a mean is taken of, else the newest value; ``None``: all.
    """

    def __init__(
        self,
        window_size: int,
        statistics: Sequence[Statistic] = (),
        mean_pattern: re.Pattern[str] | None = None,
    ) -> None:
        self.window_size = window_size
        self._mean_pattern = mean_pattern
        self._statistics = statistics
        self._num_lines = 0
        self._to_find = {one.source: one for one in statistics}

    def new_window(self, name: str) -> deque[Any]:
        """Return an empty window for a scalar, called by its phase and name."""
        about = [one for one in self._statistics if one.source == name.partition("/")[2]]
        longest = max([self.window_size, *(o.window for o in about if isinstance(o.window, int))])
        kinds = sorted({one.window for one in about if one.needs_total}, key=str)
        return TotalledWindow(longest, list(map(str, kinds))) if kinds else deque(maxlen=longest)

    def of(
        self, newest: Mapping[str, Sequence[float]], totals: Mapping[str, Mapping[str, Total]]
    ) -> dict[str, float]:
        """Return the numbers by name.

        Args:
            newest: Values of each scalar of a phase, the oldest first.
            totals: Those of a :class:`TotalledWindow`, by scalar.

        Raises:
            ConfigError: If a statistic has the name of another scalar, or is no number.
        """
        line = {
            name: self._mean(values) if self._takes_mean(name) else float(values[-1])
            for name, values in newest.items()
        }
        for one in self._statistics:
            if one.source not in newest:
                continue
            if one.name in newest and one.name != one.source:
                raise ConfigError(
                    f"{one.where}.log_name: {one.name!r} is the name of a scalar that is logged "
                    "itself; give another name."
                )
            line[one.name] = one.of(newest[one.source], totals.get(one.source, {}))
        return line

    def tell_unknown(self, names: Sequence[str]) -> None:
        """Warn, once, of statistics about scalars that are not among those of a training line."""
        if not self._to_find:
            return
        self._num_lines += 1
        for source in [*self._to_find]:
            hint = did_you_mean(source, names)
            if source in names:
                del self._to_find[source]
            elif hint or self._num_lines >= _PATIENCE:
                where = self._to_find.pop(source).where
                if is_main_process():
                    warnings.warn(
                        f"{where}.data_src: {source!r} has no values so far; there are "
                        f"{', '.join(map(repr, names))}.{hint}",
                        stacklevel=4,
                    )

    def _takes_mean(self, name: str) -> bool:
        return self._mean_pattern is None or self._mean_pattern.search(name) is not None

    def _mean(self, values: Sequence[float]) -> float:
        newest = values[-self.window_size :]
        return sum(newest) / len(newest)
