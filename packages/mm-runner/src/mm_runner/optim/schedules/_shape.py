"""Course of a schedule, and its driver over the parameter groups of an optimizer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from ._group_values import GroupValues

__all__ = ["Shape", "ShapeDriver"]


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


class ShapeDriver:
    """Applies a :class:`Shape` to every parameter group.

    Args:
        values: The setting.
        shape: Its course.
    """

    def __init__(self, values: GroupValues, shape: Shape) -> None:
        self._values = values
        self.setting = values.name
        self._shape = shape
        for index in range(len(values)):
            values.read(index)  # before another schedule changes what this one starts from

    def rewind(self) -> None:
        """Set the values that schedules started from."""
        self._values.reset()

    def start(self) -> None:
        """Set the window's first values."""
        self.advance(0)

    def advance(self, step: int) -> None:
        """Set the values of the step number ``step`` of the window."""
        for index in range(len(self._values)):
            current, base = self._values.read(index)
            value = self._shape.value(step, current, base)
            if value != current:
                self._values.write(index, value)

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the values are in the optimizer, the position is the window's."""
        return {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore nothing."""
