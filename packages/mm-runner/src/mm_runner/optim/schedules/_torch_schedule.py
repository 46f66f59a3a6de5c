"""Schedules of ``torch.optim.lr_scheduler``."""

from __future__ import annotations

import math
import reprlib
import warnings
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from mm_runner._untrusted import is_like
from mm_runner.errors import CheckpointError
from mm_runner.registry import PARAM_SCHEDULERS, build_from_cfg, check_cfg

from ._param_scheduler import ParamScheduler, is_plain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.optim import Optimizer


class TorchSchedule(ParamScheduler):
    """Drives a class of ``torch.optim.lr_scheduler``, or a registered one with its interface.

    The scheduler is built when its window begins, which sets its first learning rate.

    Raises:
        ConfigError: If an argument does not fit, before the window begins.
    """

    def __init__(
        self, optimizer: Optimizer, cfg: dict[str, Any], where: str, **window: Any
    ) -> None:
        self._cfg, self.where = cfg, where
        self._scheduler: Any = None
        check_cfg(cfg, PARAM_SCHEDULERS, {"optimizer": optimizer}, where=where)
        super().__init__(optimizer, "lr", **window)

    @override
    def _advance(self) -> None:
        """Take a step; the first builds the scheduler, and past its end a cycle stays there."""
        if not self.begin <= self.count < self.end:
            return
        step = self.count - self.begin
        if not step:
            self._build()
        elif step < (getattr(self._scheduler, "total_steps", None) or math.inf):
            if step > 1:
                self._scheduler.step()
                return
            with warnings.catch_warnings():  # no optimizer step yet: accumulation, or an overflow
                message = r"Detected call of `(lr_)?scheduler\.step\(\)` bef"
                warnings.filterwarnings("ignore", message)
                self._scheduler.step()

    def _build(self) -> None:
        given = {"optimizer": self.optimizer}
        self._scheduler = build_from_cfg(self._cfg, PARAM_SCHEDULERS, given, where=self.where)

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return the position in primitives; the scheduler's is ``None`` before it is built."""
        own = None
        if self._scheduler is not None:
            own = {k: v for k, v in self._scheduler.state_dict().items() if is_plain(v)}
        return {**super().state_dict(), "scheduler": own}

    @override
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict(state_dict)
        saved = state_dict["scheduler"]
        if saved is None:
            self._scheduler = None
            return
        if self._scheduler is None:
            groups = self.optimizer.param_groups
            # It sets its first values, also in place.
            kept = [
                {name: deepcopy(value) for name, value in group.items() if name != "params"}
                for group in groups
            ]
            self._build()
            for group, values in zip(groups, kept, strict=True):
                group.update(values)
        own = self._scheduler.state_dict()
        # torch takes any attribute: names of another version of it are left out.
        state = {name: value for name, value in saved.items() if name in own}
        for name, value in state.items():
            if own[name] is not None and not is_like(value, own[name]):
                raise CheckpointError(
                    f"{self.where}: the checkpoint's {name} is {reprlib.repr(value)}, which does "
                    "not fit. Give the same param_scheduler, or load_from without resume."
                )
        self._scheduler.load_state_dict(state)
