"""Schedules of ``torch.optim.lr_scheduler``."""

from __future__ import annotations

import math
import reprlib
import warnings
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from mm_runner._untrusted import is_like
from mm_runner.errors import CheckpointError
from mm_runner.registry import PARAM_SCHEDULERS, build_from_cfg, check_cfg

if TYPE_CHECKING:
    from torch.optim import Optimizer

__all__ = ["TorchSchedule", "is_plain"]


class TorchSchedule:
    """Drives a class of ``torch.optim.lr_scheduler``, or a registered one with its interface.

    The scheduler is built when its window begins, which sets its first learning rate.

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
            if step > 1:
                self._scheduler.step()
                return
            with warnings.catch_warnings():  # no optimizer step yet: accumulation, or an overflow
                message = r"Detected call of `(lr_)?scheduler\.step\(\)` bef"
                warnings.filterwarnings("ignore", message)
                self._scheduler.step()

    def state_dict(self) -> dict[str, Any] | None:
        """Return the scheduler's position in primitives, ``None`` before it is built."""
        if self._scheduler is None:
            return None
        return {k: v for k, v in self._scheduler.state_dict().items() if is_plain(v)}

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
                    f"{self._where}: the checkpoint's {name} is {reprlib.repr(value)}, which does "
                    "not fit. Give the same param_scheduler, or load_from without resume."
                )
        self._scheduler.load_state_dict(state)


def is_plain(value: Any) -> bool:
    """Return whether every torch loads a value safely; others are configuration."""
    if isinstance(value, (list, tuple)):
        return all(map(is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))
