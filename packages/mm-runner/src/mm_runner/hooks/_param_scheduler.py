"""Advances learning-rate schedules."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from ._hook import Hook

__all__ = ["ParamSchedulerHook"]


class ParamSchedulerHook(Hook):
    """Steps the schedules by iteration after each step, and those by epoch after each epoch.

    A step skipped because of an overflow does not advance the schedules by iteration. With a fused
    optimizer in float16 that is known one step late, and it is the step after that does not.
    """

    priority = "LOW"

    @override
    def after_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        if not runner.param_schedulers:
            return
        if getattr(runner.optim_wrapper, "step_skipped", False):
            return
        for scheduler in runner.param_schedulers:
            if not scheduler.by_epoch:
                scheduler.step()

    @override
    def after_train_epoch(self, runner: Any) -> None:
        for scheduler in runner.param_schedulers:
            if scheduler.by_epoch:
                scheduler.step()
