"""A schedule of ours, on one setting of an optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from mm_runner.evaluator import score_of

if TYPE_CHECKING:
    from ._cycles import CosineRestart
    from ._group_values import GroupValues
    from ._plateau import ReduceOnPlateau
    from ._shape import Shape

__all__ = ["PlateauDriver", "RestartDriver", "ShapeDriver"]


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
        self.total_steps: int | None = getattr(shape, "total_steps", None)
        for index in range(len(values)):
            values.read(index)  # before another schedule changes what this one starts from

    def rewind(self) -> None:
        """Set the values that schedules started from."""
        for index in range(len(self._values)):
            self._values.reset(index)

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

    def load_state_dict(self, state_dict: Mapping[str, Any] | None) -> None:
        """Take back nothing."""


class RestartDriver(ShapeDriver):
    """Applies :class:`CosineRestart` to every parameter group, beside other schedules.

    A restart sets the value, which would undo what others have multiplied it by since the window
    began. It cannot be read off the value, in which they are mixed with the floor: so what happens
    between two steps of this schedule is noted as it happens, and a restart multiplies by it.

    Args:
        values: The setting.
        shape: Its course.
        is_first: Whether the window begins with the run. Other schedules that do may come before
            this one, such as a warm-up. A later window begins from the base.
    """

    _shape: CosineRestart

    def __init__(self, values: GroupValues, shape: CosineRestart, *, is_first: bool) -> None:
        super().__init__(values, shape)
        self._is_first = is_first
        # Of each group what others multiply by, and the value that this schedule has left.
        self._seen: list[tuple[float, float]] = []

    @override
    def start(self) -> None:
        """Set the window's first values."""
        self._seen = []
        self.advance(0)

    @override
    def advance(self, step: int) -> None:
        """Set the values of the step number ``step`` of the window."""
        seen = []
        for index in range(len(self._values)):
            current, base = self._values.read(index)
            others = self._others(index, current, base, is_start=step == 0)
            value = self._shape.value(step, current, base)
            if self._shape.restarts_at(step):
                value *= others
            if value != current:
                self._values.write(index, value)
            seen.append((others, value))
        self._seen = seen

    def _others(self, index: int, current: float, base: float, *, is_start: bool) -> float:
        """Return what others have multiplied a group's value by."""
        whole = current / base if base else 1.0
        if index >= len(self._seen):  # the window begins, or the group is new
            return whole if is_start and self._is_first else 1.0
        others, left = self._seen[index]
        if current == left:
            return others
        # A warm-up from 0 has begun anew from the base.
        return others * (current / left) if others and left else whole

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return what others did; the values are in the optimizer."""
        return {"seen": [list(one) for one in self._seen]}

    @override
    def load_state_dict(self, state_dict: Mapping[str, Any] | None) -> None:
        """Go on from what others did."""
        self._seen = [(others, left) for others, left in (state_dict or {}).get("seen", [])]


class PlateauDriver:
    """Applies :class:`ReduceOnPlateau` to every parameter group.

    Args:
        values: The setting.
        plateau: When to change it.
        where: Path of the config, for messages.
    """

    def __init__(self, values: GroupValues, plateau: ReduceOnPlateau, where: str) -> None:
        plateau.check_groups(len(values))
        self._values = values
        self.setting = values.name
        self._plateau = plateau
        self.monitor = plateau.monitor
        self._where = where
        self.total_steps: int | None = None
        # Epochs after which values were changed; None if a state of before does not say.
        self._reduced_at: list[int] | None = []

    @property
    def can_repeat(self) -> bool:
        """Whether it is known when values were changed."""
        return self._reduced_at is not None

    def rewind(self) -> None:
        """Set the values that schedules started from; what was seen of the metric stays."""
        for index in range(len(self._values)):
            self._values.reset(index)

    def start(self) -> None:
        """Do nothing: only metrics change a value."""

    def advance(self, step: int) -> None:
        """Do nothing: only metrics change a value."""

    def follow(self, metrics: Mapping[str, Any], count: int) -> None:
        """Take in the results of a validation after ``count`` epochs.

        Raises:
            ConfigError: If the metric is not among them, or no number.
        """
        if not self._plateau.is_due(score_of(metrics, self.monitor, f"{self._where}.monitor")):
            return
        if self._reduced_at is not None:
            self._reduced_at.append(count)
        self._reduce()

    def repeat(self, count: int) -> None:
        """Change the values as it was done after ``count`` epochs."""
        for _ in range((self._reduced_at or []).count(count)):
            self._reduce()

    def _reduce(self) -> None:
        for index in range(len(self._values)):
            current, _ = self._values.read(index)
            self._values.write(index, self._plateau.reduced(index, current))

    def state_dict(self) -> dict[str, Any]:
        """Return what was seen of the metric."""
        return {**self._plateau.state_dict(), "reduced_at": self._reduced_at}

    def load_state_dict(self, state_dict: Mapping[str, Any] | None) -> None:
        """Go on from what was seen of the metric."""
        if state_dict:
            self._plateau.load_state_dict(dict(state_dict))
            reduced_at = state_dict.get("reduced_at")
            self._reduced_at = None if reduced_at is None else list(reduced_at)
