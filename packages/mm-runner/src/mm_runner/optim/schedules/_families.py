"""MMEngine's families of schedules: how a value changes from step to step within its window."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import ClassVar

from typing_extensions import override

from mm_runner.errors import ConfigError

__all__ = [
    "Constant",
    "CosineAnnealing",
    "CosineRestart",
    "Exponential",
    "Linear",
    "MultiStep",
    "OneCycle",
    "Poly",
    "Shape",
    "Step",
]

# A smaller factor has lost its precision: the next value starts from the base.
_TINY = 1e-12


def _require(condition: bool, name: str, value: object, needed: str) -> None:  # noqa: FBT001
    if not condition:
        raise ConfigError(f"{name}={value!r} was given; {needed}.")


class Shape(ABC):
    """Course of a schedule within a window of epochs or iterations.

    Each step starts from the current value, which another schedule may have changed: schedules that
    act at once multiply. A subclass takes the window's length as its first, positional argument,
    and the settings that users write after that.

    Attributes:
        in_epochs: Arguments that count epochs, and are multiplied by the length of an epoch where
            a schedule by epoch is converted to one by iteration.
    """

    in_epochs: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def value(self, step: int, current: float, base: float) -> float:
        """Return the value of one parameter group.

        Args:
            step: Steps since the window began, from 0.
            current: The group's value before this step.
            base: The group's value before any schedule acted on it.
        """


class _Course(Shape):
    """A course in closed form: ``floor + (base - floor) * factor(step)``.

    A step multiplies the current value, less the floor, by the quotient of two factors.
    """

    _eta_min: float | None = None
    _eta_min_ratio: float | None = None

    @abstractmethod
    def factor(self, step: int) -> float:
        """Return the factor at ``step``."""

    def set_floor(self, eta_min: float | None, eta_min_ratio: float | None) -> None:
        """Set the floor, a number or a fraction of the base; by default 0."""
        if eta_min is not None and eta_min_ratio is not None:
            raise ConfigError(
                f"eta_min={eta_min!r} and eta_min_ratio={eta_min_ratio!r} were given; give one of "
                "them."
            )
        self._eta_min, self._eta_min_ratio = eta_min, eta_min_ratio

    @override
    def value(self, step: int, current: float, base: float) -> float:
        ratio = self._eta_min_ratio
        floor = base * ratio if ratio is not None else self._eta_min or 0.0
        factor, before = self.factor(step), self.factor(step - 1) if step else 1.0
        if abs(before) < _TINY:
            return floor + (base - floor) * factor
        return floor + (current - floor) * (factor / before)


class Constant(_Course):
    """Multiply by ``factor`` until the last step of the window, or for good if it has only one.

    Args:
        length: Of the window.
        factor: From 0 to 1. Defaults to 1/3.
    """

    def __init__(self, length: int, /, factor: float = 1 / 3) -> None:
        _require(0 <= factor <= 1, "factor", factor, "it lies from 0 to 1")
        self._factor, self._last = factor, max(length - 1, 1)

    @override
    def factor(self, step: int) -> float:
        return self._factor if step < self._last else 1.0


class Linear(_Course):
    """Go from ``start_factor`` to ``end_factor`` times the value by the window's last step.

    In a window of one step the value stays at ``start_factor``.

    Args:
        length: Of the window.
        start_factor: From 0 to 1. Defaults to 1/3.
        end_factor: From 0 to 1. Defaults to 1.
    """

    def __init__(
        self, length: int, /, start_factor: float = 1 / 3, end_factor: float = 1.0
    ) -> None:
        _require(0 <= start_factor <= 1, "start_factor", start_factor, "it lies from 0 to 1")
        _require(0 <= end_factor <= 1, "end_factor", end_factor, "it lies from 0 to 1")
        self._start, self._end, self._last = start_factor, end_factor, length - 1

    @override
    def factor(self, step: int) -> float:
        done = min(step / self._last, 1.0) if self._last else 0.0
        return self._start + (self._end - self._start) * done


class Exponential(Shape):
    """Multiply by ``gamma`` in every step."""

    def __init__(self, length: int, /, gamma: float) -> None:
        del length
        self._gamma = gamma

    @override
    def value(self, step: int, current: float, base: float) -> float:
        return current * self._gamma if step else current


class Step(Shape):
    """Multiply by ``gamma`` (default 0.1) every ``step_size`` epochs or iterations."""

    in_epochs = ("step_size",)

    def __init__(self, length: int, /, step_size: int, gamma: float = 0.1) -> None:
        del length
        is_positive = isinstance(step_size, int) and step_size > 0
        _require(is_positive, "step_size", step_size, "it is a positive integer")
        self._step_size, self._gamma = step_size, gamma

    @override
    def value(self, step: int, current: float, base: float) -> float:
        return current * self._gamma if step and step % self._step_size == 0 else current


class MultiStep(Shape):
    """Multiply by ``gamma`` (default 0.1) at each of ``milestones``.

    They count from the start of the window; one given twice counts twice.
    """

    in_epochs = ("milestones",)

    def __init__(self, length: int, /, milestones: Sequence[int], gamma: float = 0.1) -> None:
        del length
        are_integers = all(isinstance(milestone, int) for milestone in milestones)
        _require(are_integers, "milestones", milestones, "it is a list of integers")
        ascending = sorted(milestones)
        needed = f"ascending ones are needed: {ascending!r}"
        _require(list(milestones) == ascending, "milestones", milestones, needed)
        self._times, self._gamma = Counter(milestones), gamma

    @override
    def value(self, step: int, current: float, base: float) -> float:
        times = self._times.get(step, 0) if step else 0
        return current * self._gamma**times if times else current


class CosineAnnealing(_Course):
    """Go down to the floor along half a cosine, and up again after ``T_max`` steps.

    Args:
        length: Of the window.
        T_max: Steps of the half cosine. Defaults to the length of the window.
        eta_min: The floor. Defaults to 0.
        eta_min_ratio: The floor as a fraction of each group's own value; instead of ``eta_min``.
    """

    in_epochs = ("T_max",)

    def __init__(
        self,
        length: int,
        /,
        T_max: int | None = None,  # noqa: N803 - torch's and MMEngine's name
        eta_min: float | None = None,
        eta_min_ratio: float | None = None,
    ) -> None:
        self.set_floor(eta_min, eta_min_ratio)
        self._period = length if T_max is None else T_max
        _require(self._period >= 1, "T_max", T_max, "it is a positive number of steps")

    @override
    def factor(self, step: int) -> float:
        # Equal to (1 + cos(pi t / T)) / 2, and exact where that cancels, near the end.
        return math.cos(math.pi * step / (2 * self._period)) ** 2


class Poly(_Course):
    """Go down to ``eta_min`` as ``(1 - t / T) ** power`` by the window's last step.

    Args:
        length: Of the window.
        eta_min: The floor. Defaults to 0.
        power: Defaults to 1.
    """

    def __init__(self, length: int, /, eta_min: float = 0.0, power: float = 1.0) -> None:
        self.set_floor(eta_min, None)
        self._power, self._last = power, length - 1

    @override
    def factor(self, step: int) -> float:
        left = max(1 - step / self._last, 0.0) if self._last else 1.0
        return float(left**self._power)


class CosineRestart(_Course):
    """Go down along half a cosine, again and again, from the base times each period's weight.

    The first period starts from the current value. A restart sets the base times its weight,
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
        self.set_floor(eta_min, eta_min_ratio)
        self._weights = list(restart_weights)
        if len(self._weights) == 1:
            self._weights *= len(periods)
        if len(self._weights) != len(periods):
            raise ConfigError(
                f"{len(periods)} periods and {len(self._weights)} restart_weights were given; give "
                "one weight for each period."
            )
        are_positive = min(periods, default=0) >= 1
        _require(are_positive, "periods", periods, "positive numbers are needed")
        self._starts = [0, *accumulate(periods)]

    @override
    def factor(self, step: int) -> float:
        index = bisect_right(self._starts, step) - 1
        start, end = self._starts[index], self._starts[index + 1]
        return math.cos(math.pi * (step - start) / (2 * (end - start))) ** 2

    @override
    def value(self, step: int, current: float, base: float) -> float:
        if step >= self._starts[-1]:
            return current
        if step in self._starts:
            return (base if step else current) * self._weights[self._starts.index(step)]
        return super().value(step, current, base)


class OneCycle(Shape):
    """Go up to ``eta_max`` and down again, far below the start: the one-cycle policy.

    The start is ``eta_max / div_factor``, the end ``eta_max / div_factor / final_div_factor``; the
    optimizer's own value has no effect.

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
        is_positive = isinstance(total, int) and total > 0
        _require(is_positive, "total_steps", total_steps, "a positive integer is needed")
        _require(0 <= pct_start <= 1, "pct_start", pct_start, "it lies from 0 to 1")
        is_known = anneal_strategy in {"cos", "linear"}
        _require(is_known, "anneal_strategy", anneal_strategy, "there are 'cos' and 'linear'")
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
