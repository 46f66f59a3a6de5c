"""How a scheduled value goes on from step to step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

__all__ = ["Shape"]


class Shape(ABC):
    """One schedule's course, within a window of epochs or iterations.

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
