"""Step times and data waiting."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from ._hook import Hook

if TYPE_CHECKING:
    from collections.abc import Callable

    from mm_runner.data import BatchFeed
    from mm_runner.run_view import RunView

__all__ = ["IterTimerHook", "feed_of_training"]

# The share of the time of a window of steps that is worth a warning.
_WAITS_TOO_LONG, _WINDOW = 0.3, 50


class IterTimerHook(Hook):
    """Puts seconds per step (``time``) and seconds waited for data (``data_time``) into the hub.

    Steps are timed on the host: means over a window are right, as the device's queue fills up, but
    a single step may look short. Hooks between two steps count as ``time``, not as ``data_time``;
    a validation between them counts as neither. Warns once if training waits for its data.
    """

    def __init__(self) -> None:
        self._last = self._before_val_s = 0.0
        self._feed: BatchFeed | None = None
        self._record_wait: Callable[[float], object]
        self._record_step: Callable[[float], object]
        self._num_steps = 0
        self._waited_s = 0.0  # up to the newest step
        self._window_s = self._window_waited_s = 0.0  # of the steps since the last check
        self._has_warned = False

    @override
    def before_train(self, runner: RunView) -> None:
        self._feed = feed_of_training(runner)
        self._waited_s = self._feed.waited_s if self._feed is not None else 0.0
        self._record_wait = runner.message_hub.recorder("train/data_time")
        self._record_step = runner.message_hub.recorder("train/time")
        self._num_steps, self._has_warned = 0, False

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
        if mode != "train" or self._feed is None:  # a loop that times no batches
            waited_s = time.perf_counter() - self._last
            runner.message_hub.update_scalar(f"{mode}/data_time", waited_s)
            return
        waited_s, self._waited_s = self._feed.waited_s - self._waited_s, self._feed.waited_s
        self._record_wait(waited_s)
        self._window_waited_s += waited_s

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
        step_s, self._last = now - self._last, now
        if mode != "train":
            runner.message_hub.update_scalar(f"{mode}/time", step_s)
            return
        self._record_step(step_s)
        self._window_s += step_s
        self._num_steps += 1
        if self._num_steps % _WINDOW == 0:
            self._check_waiting(runner)

    def _check_waiting(self, runner: RunView) -> None:
        share = self._window_waited_s / self._window_s
        self._window_s = self._window_waited_s = 0.0
        # In the first window workers start and kernels are compiled.
        is_first = self._num_steps == _WINDOW
        if share > _WAITS_TOO_LONG and not (is_first or self._has_warned) and runner.rank == 0:
            self._has_warned = True
            workers = getattr(runner.train_dataloader, "num_workers", 0)
            runner.logger.warning(
                f"{share:.0%} of the last {_WINDOW} steps' time was spent waiting for data. Raise "
                f"train_dataloader.num_workers, which is {workers} (this machine has "
                f"{os.cpu_count()} cores), store samples in a form that is cheaper to read, or "
                "move augmentation to the device."
            )


def feed_of_training(runner: RunView) -> BatchFeed | None:
    """Return what times the batches of a training; ``None`` in a user's loop that has none."""
    return getattr(getattr(runner.train_loop, "batches", None), "feed", None)
