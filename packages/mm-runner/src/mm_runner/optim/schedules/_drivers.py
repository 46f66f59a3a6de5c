"""Apply schedules to the parameter groups of an optimizer."""

from __future__ import annotations

import math
import reprlib
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from torch import Tensor

from mm_runner._untrusted import is_like
from mm_runner.errors import CheckpointError, ConfigError
from mm_runner.evaluator import score_of
from mm_runner.registry import PARAM_SCHEDULERS, build_from_cfg, check_cfg

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from ._families import Shape

__all__ = ["GroupDriver", "ReduceOnPlateau", "ShapeDriver", "TorchDriver"]


class GroupDriver:
    """Reads and writes one setting of every parameter group.

    A value may be a tensor (capturable and compiled optimizers have such learning rates). It is
    written in place and never read, which would wait for the device and lose precision: its exact
    value is kept beside it, as ``scheduled_<setting>``. The value that schedules started from is
    ``initial_<setting>``, as with torch. Both are saved with the optimizer.

    Args:
        optimizer: Has the groups; one added later takes part from then on.
        setting: The key. ``"momentum"`` is the first beta of an optimizer that has betas instead.

    Raises:
        ConfigError: If a group has no such number.
    """

    def __init__(self, optimizer: Optimizer, setting: str) -> None:
        self._optimizer = optimizer
        self.setting = setting
        for group in optimizer.param_groups:
            if not _is_number(self._value(group)):
                numbers = ", ".join(key for key, value in group.items() if _is_number(value))
                raise ConfigError(
                    f"{setting!r} is to be scheduled, and the parameter groups of "
                    f"{type(optimizer).__name__} have no such number; they have {numbers}."
                )
            self.read(group)  # before another schedule changes the initial value

    def read(self, group: dict[str, Any]) -> tuple[float, float]:
        """Return the current value of a group, and the one that schedules started from."""
        current = self._value(group)
        if isinstance(current, Tensor):
            exact = f"scheduled_{self.setting}"
            if exact not in group:  # once, at the start
                group[exact] = float(current)
            current = group[exact]
        return float(current), float(group.setdefault(f"initial_{self.setting}", float(current)))

    def write(self, group: dict[str, Any], value: float) -> None:
        """Set the value of a group."""
        current = self._value(group)
        if isinstance(current, Tensor):
            group[f"scheduled_{self.setting}"] = value
            current.fill_(value)
        elif self.setting in group:
            group[self.setting] = value
        else:
            group["betas"] = (value, *group["betas"][1:])

    def _value(self, group: dict[str, Any]) -> Any:
        if self.setting == "momentum" and "momentum" not in group and "betas" in group:
            return group["betas"][0]
        return group.get(self.setting)

    def rewind(self) -> None:
        """Set every group to the value that schedules started from."""
        for group in self._optimizer.param_groups:
            self.write(group, self.read(group)[1])

    def start(self) -> None:
        """Set the window's first values."""

    def advance(self, step: int) -> None:
        """Set the values of the step number ``step`` of the window, from 1."""

    def state_dict(self) -> Any:
        """Return the state in primitives; values are in the optimizer, positions in the window."""
        return {}

    def load_state_dict(self, state_dict: Any) -> None:
        """Restore the state."""


class ShapeDriver(GroupDriver):
    """Applies a :class:`Shape` to every parameter group."""

    def __init__(self, optimizer: Optimizer, setting: str, shape: Shape) -> None:
        super().__init__(optimizer, setting)
        self._shape = shape

    def start(self) -> None:
        self.advance(0)

    def advance(self, step: int) -> None:
        for group in self._optimizer.param_groups:
            current, base = self.read(group)
            value = self._shape.value(step, current, base)
            if value != current:
                self.write(group, value)


class ReduceOnPlateau(GroupDriver):
    """Multiply by ``factor`` once a metric has not improved for more than ``patience`` validations.

    Args:
        optimizer: As of :class:`GroupDriver`.
        setting: As there.
        where: Path of the config, for messages.
        monitor: Name of the metric, as the validation reports it. Defaults to ``"loss"``.
        rule: ``"less"`` (the default) or ``"greater"`` is better.
        factor: Less than 1. Defaults to 0.1.
        patience: Validations to wait. Defaults to 10.
        threshold: Least change that counts. Defaults to 1e-4.
        threshold_rule: ``"rel"`` (the default): a fraction of the best; ``"abs"``: a difference.
        cooldown: Validations after a change in which nothing is counted. Defaults to 0.
        min_value: Floor, one number or one for each parameter group. Defaults to 0.
        eps: Smaller changes are not made. Defaults to 1e-8.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        setting: str,
        where: str,
        /,
        monitor: str = "loss",
        rule: str = "less",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_rule: str = "rel",
        cooldown: int = 0,
        min_value: float | Sequence[float] = 0.0,
        eps: float = 1e-8,
    ) -> None:
        if rule not in {"less", "greater"}:
            raise ConfigError(f"rule={rule!r} was given; there are 'less' and 'greater'.")
        if threshold_rule not in {"rel", "abs"}:
            raise ConfigError(f"threshold_rule={threshold_rule!r} was given; 'rel' or 'abs'.")
        if not factor < 1:
            raise ConfigError(f"factor={factor!r} was given; it is less than 1.")
        if threshold < 0:
            raise ConfigError(f"threshold={threshold!r} was given; it is at least 0.")
        super().__init__(optimizer, setting)
        number = len(optimizer.param_groups)
        floors = list(min_value) if isinstance(min_value, Sequence) else [min_value] * number
        if len(floors) != number:
            raise ConfigError(
                f"min_value has {len(floors)} values, and the optimizer {number} parameter "
                "groups; give one number, or one for each group."
            )
        self._where, self.monitor = where, monitor
        self._sign = 1.0 if rule == "less" else -1.0
        self._factor, self._patience, self._cooldown = factor, patience, cooldown
        self._threshold, self._is_relative = threshold, threshold_rule == "rel"
        self._floors, self._eps = floors, eps
        self._state: dict[str, Any] = {
            "best": None,
            "num_bad": 0,
            "cooldown_left": 0,
            "reduced_at": [],  # epochs after which values were reduced, to replay them
        }

    def follow(self, metrics: Mapping[str, Any], count: int) -> None:
        """Update from the metrics of a validation after ``count`` epochs."""
        state = self._state
        metric = score_of(metrics, self.monitor, f"{self._where}.monitor")
        if self._is_better(metric):
            state["best"], state["num_bad"] = metric, 0
        else:
            state["num_bad"] += 1
        if state["cooldown_left"] > 0:
            state["cooldown_left"] -= 1
            state["num_bad"] = 0
        if state["num_bad"] > self._patience:
            state["cooldown_left"], state["num_bad"] = self._cooldown, 0
            state["reduced_at"].append(count)
            self._reduce()

    def repeat(self, count: int) -> None:
        """Reduce the values as after ``count`` epochs."""
        for _ in range(self._state["reduced_at"].count(count)):
            self._reduce()

    def state_dict(self) -> dict[str, Any]:
        return deepcopy(self._state)

    def load_state_dict(self, state_dict: Any) -> None:
        self._state = {name: deepcopy(state_dict[name]) for name in self._state}

    def _reduce(self) -> None:
        for index, group in enumerate(self._optimizer.param_groups):
            current, _ = self.read(group)
            new = max(current * self._factor, self._floors[min(index, len(self._floors) - 1)])
            if current - new > self._eps:
                self.write(group, new)

    def _is_better(self, metric: float) -> bool:
        best = self._state["best"]
        if math.isnan(metric) or best is None:
            return not math.isnan(metric)
        margin = self._threshold * (abs(best) if self._is_relative else 1.0)
        return bool(self._sign * metric < self._sign * best - margin)


class TorchDriver:
    """Drives a class of ``torch.optim.lr_scheduler``, or a registered one that is built like them.

    The scheduler is built when its window begins, which sets its first learning rate.

    Args:
        optimizer: Whose learning rates are scheduled.
        arguments: The config without its window.
        where: Path of the config, for messages.

    Raises:
        ConfigError: If an argument does not fit, before the window begins.
    """

    setting = "lr"

    def __init__(self, optimizer: Optimizer, arguments: dict[str, Any], where: str) -> None:
        self._optimizer, self._arguments, self._where = optimizer, arguments, where
        self._scheduler: Any = None
        check_cfg(arguments, PARAM_SCHEDULERS, {"optimizer": optimizer}, where=where)

    def rewind(self) -> None:
        """Set the learning rates that schedules started from."""
        if any("initial_lr" in group for group in self._optimizer.param_groups):
            GroupDriver(self._optimizer, "lr").rewind()
        self._scheduler = None

    def start(self) -> None:
        """Build the scheduler."""
        self._scheduler = build_from_cfg(
            self._arguments, PARAM_SCHEDULERS, {"optimizer": self._optimizer}, where=self._where
        )

    def advance(self, step: int) -> None:
        """Take the step number ``step``, from 1; after its last step a cycle stays at the end."""
        if step >= (getattr(self._scheduler, "total_steps", None) or math.inf):
            return
        with warnings.catch_warnings():
            if step == 1:  # no optimizer step yet, while it accumulates or after an overflow
                warnings.filterwarnings("ignore", r"Detected call of `lr_scheduler\.step\(\)` bef")
            self._scheduler.step()

    def state_dict(self) -> dict[str, Any] | None:
        """Return the scheduler's position in primitives, ``None`` before it is started."""
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
            self.start()
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
