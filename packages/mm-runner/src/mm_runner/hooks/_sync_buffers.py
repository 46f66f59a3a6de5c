"""Averages of buffers over the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

import mm_dist

from ._hook import Hook

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

__all__ = ["SyncBuffersHook"]


class SyncBuffersHook(Hook):
    """Averages the floating-point buffers over the ranks, such as BatchNorm's running statistics.

    It does so after each training epoch and before each validation, so that results do not depend
    on the data of the first rank; and before hooks of the default priority, such as the EMA.
    """

    priority = "ABOVE_NORMAL"

    @override
    def after_train_epoch(self, runner: RunView) -> None:
        _average(runner)

    @override
    def before_val_epoch(self, runner: RunView) -> None:
        if runner.is_training:
            _average(runner)


def _average(runner: RunView) -> None:
    if runner.distributed:
        buffers = (buffer for buffer in runner.model.buffers() if buffer.is_floating_point())
        mm_dist.all_reduce_params(buffers, op="mean")
