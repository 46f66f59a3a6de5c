"""Read and write scheduled settings of an optimizer, and drive torch's schedulers."""

from __future__ import annotations

import math
import reprlib
import warnings
from collections import Counter
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from torch import Tensor

from mm_runner._untrusted import is_like
from mm_runner.errors import CheckpointError, ConfigError
from mm_runner.registry import PARAM_SCHEDULERS, build_from_cfg, check_cfg

if TYPE_CHECKING:
    from torch.optim import Optimizer

__all__ = ["Setting", "TorchSchedule"]


class Setting:
    """One setting of every parameter group.

    A value may be a tensor (capturable and compiled optimizers have such learning rates). It is
    written in place and never read, which would wait for the device and lose precision: its exact
    value is kept beside it, as ``scheduled_<setting>``. The value that schedules started from is
    ``initial_<setting>``, as with torch. Both are saved with the optimizer.

    Args:
        optimizer: Has the groups; one added later takes part from then on.
        name: The key. ``"momentum"`` is the first beta of an optimizer that has betas instead.

    Raises:
        ConfigError: If a group has no such number.
    """

    def __init__(self, optimizer: Optimizer, name: str) -> None:
        self._optimizer, self.name = optimizer, name
        for group in self.groups:
            if not _is_number(self._value(group)):
                numbers = ", ".join(key for key, value in group.items() if _is_number(value))
                raise ConfigError(
                    f"{name!r} is to be scheduled, and the parameter groups of "
                    f"{type(optimizer).__name__} have no such number; they have {numbers}."
                )
            self.read(group)  # before another schedule changes the initial value

    @property
    def groups(self) -> list[dict[str, Any]]:
        """The parameter groups."""
        return self._optimizer.param_groups

    def read(self, group: dict[str, Any]) -> tuple[float, float]:
        """Return the current value of a group, and the one that schedules started from."""
        current = self._value(group)
        if isinstance(current, Tensor):
            exact = f"scheduled_{self.name}"
            if exact not in group:  # once, at the start
                group[exact] = float(current)
            current = group[exact]
        return float(current), float(group.setdefault(f"initial_{self.name}", float(current)))

    def write(self, group: dict[str, Any], value: float) -> None:
        """Set the value of a group."""
        current = self._value(group)
        if isinstance(current, Tensor):
            group[f"scheduled_{self.name}"] = value
            current.fill_(value)
        elif self.name in group:
            group[self.name] = value
        else:
            group["betas"] = (value, *group["betas"][1:])

    def rewind(self) -> None:
        """Set every group to the value that schedules started from."""
        for group in self.groups:
            self.write(group, self.read(group)[1])

    def _value(self, group: dict[str, Any]) -> Any:
        if self.name == "momentum" and "momentum" not in group and "betas" in group:
            return group["betas"][0]
        return group.get(self.name)


class TorchSchedule:
    """Drives a class of ``torch.optim.lr_scheduler``, or a registered one that is built like them.

    The scheduler is built when its window begins, which sets its first learning rate.

    Args:
        optimizer: Whose learning rates are scheduled.
        cfg: The config without its window.
        where: Path of the config, for messages.

    Raises:
        ConfigError: If an argument does not fit, before the window begins.
    """

    def __init__(self, optimizer: Optimizer, cfg: dict[str, Any], where: str) -> None:
        self._optimizer, self._cfg, self._where = optimizer, cfg, where
        self._scheduler: Any = None
        check_cfg(cfg, PARAM_SCHEDULERS, {"optimizer": optimizer}, where=where)

    def advance(self, step: int) -> None:
        """Take a step, from 0, which builds the scheduler; past its end a cycle stays there."""
        if not step:
            given = {"optimizer": self._optimizer}
            self._scheduler = build_from_cfg(self._cfg, PARAM_SCHEDULERS, given, where=self._where)
        elif step < (getattr(self._scheduler, "total_steps", None) or math.inf):
            with warnings.catch_warnings():
                if step == 1:  # no optimizer step yet, while it accumulates or after an overflow
                    message = r"Detected call of `lr_scheduler\.step\(\)` bef"
                    warnings.filterwarnings("ignore", message)
                self._scheduler.step()

    def state_dict(self) -> dict[str, Any] | None:
        """Return the scheduler's position in primitives, ``None`` before it is built."""
        if self._scheduler is None:
            return None
        return {k: v for k, v in self._scheduler.state_dict().items() if _is_plain(v)}

    def load_state_dict(self, state_dict: dict[str, Any] | None) -> None:
        """Restore the position. The learning rates themselves are the optimizer's state."""
        if state_dict is None:
            self._scheduler = None
            return
        if self._scheduler is None:
            groups = self._optimizer.param_groups
            rates = [deepcopy(group["lr"]) for group in groups]  # a tensor is changed in place
            self.advance(0)
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate
        own = self._scheduler.state_dict()
        # torch takes any attribute: names of another version of it are left out.
        state = {name: value for name, value in state_dict.items() if name in own}
        for name, value in state.items():
            if own[name] is not None and not is_like(value, own[name]):
                raise CheckpointError(
                    f"{self._where}: the checkpoint's {name} of this schedule is "
                    f"{reprlib.repr(value)}, and {reprlib.repr(own[name])} is what it begins with. "
                    "Give the same param_scheduler; or take the weights alone by load_from without "
                    "resume."
                )
        self._scheduler.load_state_dict(state)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, Tensor)) and not isinstance(value, bool)


def _is_plain(value: Any) -> bool:
    """Return whether every torch loads a value safely; a Counter holds config anyway."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return not isinstance(value, Counter) and all(map(_is_plain, value.values()))
    return value is None or isinstance(value, (bool, int, float, str))
