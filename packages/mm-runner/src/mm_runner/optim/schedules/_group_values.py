"""One scheduled setting of an optimizer's parameter groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from mm_runner.errors import ConfigError

if TYPE_CHECKING:
    from torch.optim import Optimizer

__all__ = ["GroupValues"]


class GroupValues:
    """Reads and writes one key of every parameter group.

    A value may be a tensor (capturable and compiled optimizers have such learning rates). It is
    written in place and never read: that would wait for the device, and in float32 a schedule that
    goes on from the value itself stands still where a step changes less than its last digit. So its
    exact value is kept beside it, as ``scheduled_<name>``; the value that schedules started from is
    ``initial_<name>``, as with torch. Both are saved with the optimizer.

    Args:
        optimizer: Has the groups; one added later takes part from then on.
        name: The key. ``"momentum"`` is the first beta of an optimizer that has betas instead.

    Attributes:
        name: See above.

    Raises:
        ConfigError: If a group has no such number.
    """

    def __init__(self, optimizer: Optimizer, name: str) -> None:
        self._optimizer = optimizer
        self.name = name
        self._initial, self._exact = f"initial_{name}", f"scheduled_{name}"
        for group in optimizer.param_groups:
            self._check(group)

    def __len__(self) -> int:
        return len(self._optimizer.param_groups)

    def read(self, index: int) -> tuple[float, float]:
        """Return the current value of a group, and the one that schedules started from."""
        group = self._optimizer.param_groups[index]
        current = self._value(group)
        if isinstance(current, Tensor):
            if self._exact not in group:  # once, at the start
                group[self._exact] = float(current)
            current = group[self._exact]
        if self._initial not in group:
            group[self._initial] = float(current)
        return float(current), float(group[self._initial])

    def reset(self) -> None:
        """Set every group to the value that schedules started from."""
        for index, group in enumerate(self._optimizer.param_groups):
            if self._initial in group:
                self.write(index, float(group[self._initial]))

    def write(self, index: int, value: float) -> None:
        """Set the value of a group."""
        group = self._optimizer.param_groups[index]
        current = self._value(group)
        if isinstance(current, Tensor):
            group[self._exact] = value
            current.fill_(value)
        elif self.name in group:
            group[self.name] = value
        else:
            group["betas"] = (value, *group["betas"][1:])

    def _value(self, group: dict[str, Any]) -> Any:
        if self.name == "momentum" and self.name not in group and "betas" in group:
            return group["betas"][0]
        return group.get(self.name)

    def _check(self, group: dict[str, Any]) -> None:
        if not _is_number(self._value(group)):
            numbers = ", ".join(key for key, value in group.items() if _is_number(value))
            raise ConfigError(
                f"{self.name!r} is to be scheduled, and the parameter groups of "
                f"{type(self._optimizer).__name__} have no such number; they have {numbers}."
            )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, Tensor)) and not isinstance(value, bool)
