"""Step times and data waiting."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from ._hook import Hook

if TYPE_CHECKING:
    from mm_runner.data import BatchFeed
    from mm_runner.run_view import RunView

__all__ = ["IterTimerHook"]


class IterTimerHook(Hook):
    """Put seconds per step (``time``) and seconds waited for data (``data_time``) into the hub.

    Steps are timed on the host: means over a window are right, as the device's queue fills up, but
    a single step may look short. Hooks between two steps count as ``time``, not as ``data_time``;
    a validation between them counts as neither.
    """

    def __init__(self) -> None:
        self._last = self._before_val_s = 0.0
        self._feed: BatchFeed | None = None
        self._waited_s = 0.0  # up to the newest step

    @override
    def before_train(self, runner: RunView) -> None:
        self._feed = getattr(runner.train_loop, "batches", None)
        self._waited_s = self._feed.waited_s if self._feed is not None else 0.0
        self._record_wait = runner.message_hub.recorder("train/data_time")
        self._record_step = runner.message_hub.recorder("train/time")

    @override
    def before_val(self, runner: RunView) -> None:
        self._before_val_s = time.perf_counter() - self._last

    @override
    def after_val(self, runner: RunView) -> None:
        self._last = time.perf_counter() - self._before_val_s

    @override
    def _before_epoch(self, runner: RunView, mode: str = "train") -> None:
        self._last = time.perf_counter()

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        now = time.perf_counter()
        self._record_step(now - self._last)
        self._last = now
        if self._feed is not None:  # else a loop that times no batches
            waited_s = self._feed.waited_s
            self._record_wait(waited_s - self._waited_s)
            self._waited_s = waited_s

    @override
    def before_val_iter(self, runner: RunView, batch_idx: int, data_batch: Any = None) -> None:
        runner.message_hub.update_scalar("val/data_time", time.perf_counter() - self._last)

    @override
    def before_test_iter(self, runner: RunView, batch_idx: int, data_batch: Any = None) -> None:
        runner.message_hub.update_scalar("test/data_time", time.perf_counter() - self._last)

    @override
    def _after_iter(self, runner: RunView, *batch: Any, mode: str = "train", **more: Any) -> None:
        now = time.perf_counter()
        runner.message_hub.update_scalar(f"{mode}/time", now - self._last)
        self._last = now
