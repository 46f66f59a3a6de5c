"""Schedules that set a value rather than only multiply it: cosine with restarts, and one cycle."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from typing_extensions import override

from mm_runner.errors import ConfigError

from ._decays import check_floor, floor_of
from ._shape import Shape

__all__ = ["CosineRestart", "OneCycle"]


class CosineRestart(Shape):
    """Go down along half a cosine, again and again, from the base times each period's weight.

    The first period begins at the value that it finds. A restart sets the base times its weight,
    whatever other schedules have multiplied the value by. After the last period the value stays.

    Args:
        length: Of the window.
        periods: Steps of each half cosine.
        restart_weights: One for each period. Defaults to 1 for all.
        eta_min: The floor. Defaults to 0.
        eta_min_ratio: The floor as a fraction of each group's own value; instead of ``eta_min``.
    """

    in_epochs = ("periods",)

    def __init__(
        self,
        length: int,
        /,
        periods: Sequence[int],
        restart_weights: Sequence[float] = (1.0,),
        eta_min: float | None = None,
        eta_min_ratio: float | None = None,
    ) -> None:
        del length
        check_floor(eta_min, eta_min_ratio)
        weights = list(restart_weights)
        if len(weights) == 1:
            weights *= len(periods)
        if len(weights) != len(periods):
            raise ConfigError(
                f"{len(periods)} periods and {len(weights)} restart_weights were given; give one "
                "weight for each period."
            )
        if not periods or min(periods) < 1:
            raise ConfigError(f"periods={periods!r} was given; positive numbers are needed.")
        self._periods, self._weights = list(periods), weights
        self._ends = list(accumulate(periods))
        self._eta_min, self._ratio = eta_min, eta_min_ratio

    @override
    def value(self, step: int, current: float, base: float) -> float:
        index = bisect_right(self._ends, step)
        if index == len(self._periods):
            return current
        length = self._periods[index]
        since = step - (self._ends[index] - length)
        if since == 0:
            return (base if step else current) * self._weights[index]
        floor = floor_of(base, self._eta_min, self._ratio)
        # No period is as long as its half cosine, so the factor before is never 0.
        factor, before = (math.cos(math.pi * t / (2 * length)) ** 2 for t in (since, since - 1))
        return floor + (current - floor) * (factor / before)


class OneCycle(Shape):
    """Go up to ``eta_max`` and down again, far below the start: the one-cycle policy.

    The start is ``eta_max / div_factor``, the end ``eta_max / div_factor / final_div_factor``; what
    the optimizer was given does not count.

    Args:
        length: Of the window.
        eta_max: The top.
        total_steps: Steps of the cycle. Defaults to the length of the window.
        pct_start: Fraction of the cycle that goes up. Defaults to 0.3.
        anneal_strategy: ``"cos"`` or ``"linear"``.
        div_factor: See above. Defaults to 25.
        final_div_factor: See above. Defaults to 10,000.
        three_phase: Go down to the start as long as up, and then to the end.
    """

    in_epochs = ("total_steps",)

    def __init__(
        self,
        length: int,
        /,
        eta_max: float,
        total_steps: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,  # noqa: FBT001, FBT002 - MMEngine's signature
    ) -> None:
        total = length if total_steps is None else total_steps
        if not isinstance(total, int) or total < 1:
            raise ConfigError(f"total_steps={total_steps!r} was given; a positive integer is.")
        if not 0 <= pct_start <= 1:
            raise ConfigError(f"pct_start={pct_start!r} was given; it lies from 0 to 1.")
        if anneal_strategy not in {"cos", "linear"}:
            raise ConfigError(
                f"anneal_strategy={anneal_strategy!r} was given; there are 'cos' and 'linear'."
            )
        low = eta_max / div_factor
        up = float(pct_start * total) - 1
        # Pairs of the step at which a phase ends and the value there.
        self._turns = [(0.0, low), (up, eta_max)]
        if three_phase:
            self._turns.append((2 * up, low))
        self._turns.append((float(total - 1), low / final_div_factor))
        self._is_cosine = anneal_strategy == "cos"

    @override
    def value(self, step: int, current: float, base: float) -> float:
        last = len(self._turns) - 1
        index = next((i for i in range(1, last) if step <= self._turns[i][0]), last)
        (begin, start), (end, goal) = self._turns[index - 1], self._turns[index]
        if step > end:
            return goal  # the cycle is over
        done = (step - begin) / (end - begin) if end > begin else 1.0
        if self._is_cosine:
            done = (1 - math.cos(math.pi * done)) / 2
        return start + (goal - start) * done
