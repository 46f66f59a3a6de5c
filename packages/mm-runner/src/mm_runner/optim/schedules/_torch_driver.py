"""Drive a torch scheduler, started when its window begins."""

from __future__ import annotations

import math
import reprlib
import warnings
from collections import Counter
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from torch import Tensor

from mm_runner._untrusted import is_like
from mm_runner.errors import CheckpointError
from mm_runner.registry import PARAM_SCHEDULERS, build_from_cfg, check_cfg

if TYPE_CHECKING:
    from torch.optim import Optimizer

__all__ = ["TorchDriver"]


class TorchDriver:
    """Drives a class of ``torch.optim.lr_scheduler``, or one registered that is built like them.

    Args:
        optimizer: Whose learning rates are scheduled.
        arguments: The config without its window.
        where: Path of the config, for messages.

    Raises:
        ConfigError: If an argument does not fit, before the window begins.
    """

    setting = "lr"

    def __init__(self, optimizer: Optimizer, arguments: dict[str, Any], where: str) -> None:
        self._optimizer = optimizer
        self._arguments = arguments
        self._where = where
        self._scheduler: Any = None
        check_cfg(arguments, PARAM_SCHEDULERS, {"optimizer": optimizer}, where=where)

    def rewind(self) -> None:
        """Set the learning rates that schedules started from."""
        self._scheduler = None
        for group in self._optimizer.param_groups:
            if "initial_lr" not in group:  # none has started
                continue
            initial = float(group["initial_lr"])
            if isinstance(group["lr"], Tensor):  # groups, and compiled code, may hold this very one
                group["lr"].fill_(initial)
            else:
                group["lr"] = initial

    def start(self) -> None:
        """Make the scheduler, which sets its first learning rate."""
        self._scheduler = build_from_cfg(
            self._arguments, PARAM_SCHEDULERS, {"optimizer": self._optimizer}, where=self._where
        )

    def advance(self, step: int) -> None:
        """Take the step number ``step``, from 1; after its last step a cycle stays at the end."""
        if step >= (getattr(self._scheduler, "total_steps", None) or math.inf):
            return
        if step > 1:
            self._scheduler.step()
            return
        with warnings.catch_warnings():
            # The optimizer has not stepped yet while it accumulates, or after an overflow.
            warnings.filterwarnings("ignore", r"Detected call of `lr_scheduler\.step\(\)` before")
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
            # Starting a torch scheduler sets its first learning rate, which is long past.
            # Copied: a learning rate that is a tensor is changed in place.
            groups = self._optimizer.param_groups
            rates = [deepcopy(group["lr"]) for group in groups]
            self.start()
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate
        own = self._scheduler.state_dict()
        # torch takes any attribute. What another version of it kept under a name of its own is
        # left out.
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


def _is_plain(value: Any) -> bool:
    """Return whether every torch loads a value safely; a Counter holds config anyway."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return not isinstance(value, Counter) and all(map(_is_plain, value.values()))
    return value is None or isinstance(value, (bool, int, float, str))
