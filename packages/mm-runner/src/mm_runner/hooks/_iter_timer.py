"""Step times and data waiting."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from ._hook import Hook

if TYPE_CHECKING:
    from collections.abc import Callable

    from mm_runner.data import BatchFeed
    from mm_runner.run_view import RunView

__all__ = ["DataWaits", "IterTimerHook"]


class IterTimerHook(Hook):
    """Puts seconds per step (``time``) and seconds waited for data (``data_time``) into the hub.

    Steps are timed on the host: means over a window are right, as the device's queue fills up, but
    a single step may look short. Hooks between two steps count as ``time``, not as ``data_time``;
    a validation between them counts as neither.
    """

    def __init__(self) -> None:
        self._last = self._before_val_s = 0.0
        self._waits: DataWaits | None = None
        # For training steps of the run that this hub belongs to, where each microsecond counts.
        self._hub: Any = None
        self._record_wait: Callable[[float], None]
        self._record_step: Callable[[float], None]

    @override
    def before_train(self, runner: RunView) -> None:
        self._waits = DataWaits.of_run(runner)
        self._hub = runner.message_hub
        self._record_wait = self._hub.recorder("train/data_time")
        self._record_step = self._hub.recorder("train/time")

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
    def _before_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, mode: str = "train"
    ) -> None:
        if mode == "train" and self._waits is not None and self._hub is runner.message_hub:
            self._record_wait(self._waits.take_s())
        else:  # a loop that times no batches
            waited_s = time.perf_counter() - self._last
            runner.message_hub.update_scalar(f"{mode}/data_time", waited_s)

    @override
    def _after_iter(
        self,
        runner: RunView,
        batch_idx: int,
        data_batch: Any = None,
        outputs: Any = None,
        mode: str = "train",
    ) -> None:
        now = time.perf_counter()
        if mode == "train" and self._hub is runner.message_hub:
            self._record_step(now - self._last)
        else:
            runner.message_hub.update_scalar(f"{mode}/time", now - self._last)
        self._last = now


class DataWaits:
    """Time that training waited for its data; not for checkpoints or validations between steps.

    Args:
        feed: Times the batches.
    """

    def __init__(self, feed: BatchFeed) -> None:
        self._feed = feed
        self._taken_s = feed.loaded_s + feed.copied_s

    @classmethod
    def of_run(cls, runner: RunView) -> DataWaits | None:
        """Return those of a run; ``None`` in a loop of the user's own that times no batches."""
        feed = getattr(getattr(runner.train_loop, "batches", None), "feed", None)
        return None if feed is None else cls(feed)

    def take_s(self) -> float:
        """Return the seconds since the last call, or since this was made."""
        before, self._taken_s = self._taken_s, self._feed.loaded_s + self._feed.copied_s
        return self._taken_s - before
