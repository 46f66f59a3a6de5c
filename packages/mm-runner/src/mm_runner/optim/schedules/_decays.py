"""Schedules that multiply: constant, linear, exponential, in steps, cosine and polynomial.

Each has its course ``factor(step)`` in closed form; a step multiplies the current value, less the
floor, by the quotient of two neighbouring factors.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence

from typing_extensions import override

from mm_runner.errors import ConfigError

from ._shape import Shape

__all__ = [
    "Constant",
    "CosineAnnealing",
    "Exponential",
    "Linear",
    "MultiStep",
    "Poly",
    "Step",
    "floor_of",
]

# Below this a factor says too little to go on from: the next value starts from the base.
_NOTHING = 1e-12


class _Course(Shape):
    """A course that is known in closed form."""

    @abstractmethod
    def factor(self, step: int) -> float:
        """Return what the base, less the floor, is multiplied by at ``step``."""

    def floor(self, base: float) -> float:
        """Return what the value approaches where the factor is 0."""
        del base
        return 0.0

    @override
    def value(self, step: int, current: float, base: float) -> float:
        floor, factor = self.floor(base), self.factor(step)
        before = self.factor(step - 1) if step else 1.0
        if abs(before) < _NOTHING:
            return floor + (base - floor) * factor
        return floor + (current - floor) * (factor / before)


class Constant(_Course):
    """Multiply by ``factor`` until the last step of the window, or for good if it has only one.

    Args:
        length: Of the window.
        factor: From 0 to 1. Defaults to 1/3.
    """

    def __init__(self, length: int, /, factor: float = 1 / 3) -> None:
        if not 0 <= factor <= 1:
            raise ConfigError(f"factor={factor!r} was given; it lies from 0 to 1.")
        self._factor = factor
        self._last = max(length - 1, 1)

    @override
    def factor(self, step: int) -> float:
        return self._factor if step < self._last else 1.0


class Linear(_Course):
    """Go from ``start_factor`` to ``end_factor`` times the value; the window's last step arrives.

    A window of one step only starts, and the value stays there.

    Args:
        length: Of the window.
        start_factor: From 0 to 1; 0 lets a warm-up begin with nothing. Defaults to 1/3.
        end_factor: From 0 to 1. Defaults to 1.
    """

    def __init__(
        self, length: int, /, start_factor: float = 1 / 3, end_factor: float = 1.0
    ) -> None:
        for name, value in (("start_factor", start_factor), ("end_factor", end_factor)):
            if not 0 <= value <= 1:
                raise ConfigError(f"{name}={value!r} was given; it lies from 0 to 1.")
        self._start, self._end = start_factor, end_factor
        self._last = length - 1

    @override
    def factor(self, step: int) -> float:
        done = min(step / self._last, 1.0) if self._last else 0.0
        return self._start + (self._end - self._start) * done


class Exponential(Shape):
    """Multiply by ``gamma`` in every step.

    Args:
        length: Of the window.
        gamma: The factor.
    """

    def __init__(self, length: int, /, gamma: float) -> None:
        del length
        self._gamma = gamma

    @override
    def value(self, step: int, current: float, base: float) -> float:
        return current * self._gamma if step else current


class Step(Shape):
    """Multiply by ``gamma`` every ``step_size`` steps.

    Args:
        length: Of the window.
        step_size: A positive number of epochs or iterations.
        gamma: The factor. Defaults to 0.1.
    """

    in_epochs = ("step_size",)

    def __init__(self, length: int, /, step_size: int, gamma: float = 0.1) -> None:
        del length
        if not isinstance(step_size, int) or step_size < 1:
            raise ConfigError(f"step_size={step_size!r} was given; it is a positive integer.")
        self._step_size, self._gamma = step_size, gamma

    @override
    def value(self, step: int, current: float, base: float) -> float:
        return current * self._gamma if step and step % self._step_size == 0 else current


class MultiStep(Shape):
    """Multiply by ``gamma`` at each of ``milestones``.

    Args:
        length: Of the window.
        milestones: Epochs or iterations since the window began; one given twice counts twice.
        gamma: The factor. Defaults to 0.1.
    """

    in_epochs = ("milestones",)

    def __init__(self, length: int, /, milestones: Sequence[int], gamma: float = 0.1) -> None:
        del length
        if not all(isinstance(milestone, int) for milestone in milestones):
            raise ConfigError(f"milestones={milestones!r} was given; it is a list of integers.")
        if list(milestones) != sorted(milestones):
            raise ConfigError(
                f"milestones={milestones!r} was given; ascending ones are needed: "
                f"{sorted(milestones)!r}."
            )
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
        check_floor(eta_min, eta_min_ratio)
        if T_max is not None and T_max < 1:
            raise ConfigError(f"T_max={T_max!r} was given; it is a positive number of steps.")
        self._period = length if T_max is None else T_max
        self._eta_min, self._ratio = eta_min, eta_min_ratio

    @override
    def floor(self, base: float) -> float:
        return floor_of(base, self._eta_min, self._ratio)

    @override
    def factor(self, step: int) -> float:
        # Equal to (1 + cos(pi t / T)) / 2, and exact where that cancels, near the end.
        return math.cos(math.pi * step / (2 * self._period)) ** 2


class Poly(_Course):
    """Go down to ``eta_min`` as ``(1 - t / T) ** power``; the window's last step arrives.

    Args:
        length: Of the window.
        eta_min: The floor. Defaults to 0.
        power: Defaults to 1.
    """

    def __init__(self, length: int, /, eta_min: float = 0.0, power: float = 1.0) -> None:
        self._eta_min, self._power = eta_min, power
        self._last = length - 1

    @override
    def floor(self, base: float) -> float:
        return self._eta_min

    @override
    def factor(self, step: int) -> float:
        left = max(1 - step / self._last, 0.0) if self._last else 1.0
        return float(left**self._power)


def check_floor(eta_min: float | None, eta_min_ratio: float | None) -> None:
    """Raise ``ConfigError`` if a floor is given in both ways."""
    if eta_min is not None and eta_min_ratio is not None:
        raise ConfigError(
            f"eta_min={eta_min!r} and eta_min_ratio={eta_min_ratio!r} were given; give one of them."
        )


def floor_of(base: float, eta_min: float | None, eta_min_ratio: float | None) -> float:
    """Return the floor of a group whose value was ``base``."""
    return base * eta_min_ratio if eta_min_ratio is not None else eta_min or 0.0
