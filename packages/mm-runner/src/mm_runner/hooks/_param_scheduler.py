"""Advances learning-rate schedules."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from mm_runner.optim import named_schedulers, named_wrappers

from ._hook import Hook

__all__ = ["ParamSchedulerHook"]


class ParamSchedulerHook(Hook):
    """Steps the schedules by iteration after each step, and those by epoch after each epoch.

    A step skipped because of an overflow does not advance the schedules by iteration. With a fused
    optimizer in float16 that is known one step late, and it is the step after that does not.
    Of several optimizer wrappers, each has its own schedules, which its own skipped steps hold.
    """

    priority = "LOW"

    def __init__(self) -> None:
        self._num_skipped: dict[str, int] = {}

    @override
    def after_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        if not runner.param_schedulers:
            return
        wrappers = named_wrappers(runner.optim_wrapper)
        for name, schedulers in named_schedulers(runner.param_schedulers).items():
            if self._has_just_skipped(name, wrappers[name]):
                continue
            for scheduler in schedulers:
                if not scheduler.by_epoch:
                    scheduler.step()

    def _has_just_skipped(self, name: str, wrapper: Any) -> bool:
        """Tell whether a skip became known since the last call.

        One of several wrappers need not step in every iteration, and keeps its answer meanwhile.
        """
        is_known: bool = wrapper.step_skipped  # first: asking brings the number up to date
        before, self._num_skipped[name] = self._num_skipped.get(name), wrapper.num_skipped
        return is_known and wrapper.num_skipped != before

    @override
    def after_train_epoch(self, runner: Any) -> None:
        for schedulers in named_schedulers(runner.param_schedulers).values():
            for scheduler in schedulers:
                if scheduler.by_epoch:
                    scheduler.step()
