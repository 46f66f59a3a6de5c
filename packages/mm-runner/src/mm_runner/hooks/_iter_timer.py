"""Times steps."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from ._data_waits import DataWaits
from ._hook import Hook

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

__all__ = ["IterTimerHook"]


class IterTimerHook(Hook):
    """Puts seconds per step (``time``) and seconds waited for data (``data_time``) into the hub.

    Steps are timed on the host. A device that lags behind is noticed as soon as its queue is full,
    so means over a window are right; a single step may look short. What hooks do between two steps
    is time, and no waiting for data; a validation between them is neither.
    """

    def __init__(self) -> None:
        self._last = self._before_val_s = 0.0
        self._waits: DataWaits | None = None
        self._hub: Any = None
        self._note_wait: Any = None
        self._note_step: Any = None
        self._is_extended = type(self)._after_iter is not IterTimerHook._after_iter  # noqa: SLF001

    @override
    def before_train(self, runner: RunView) -> None:
        self._waits = DataWaits.of_run(runner)

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
        runner.message_hub.update_scalar(f"{mode}/data_time", time.perf_counter() - self._last)

    @override
    def is_idle_at(self, stage: str) -> bool:
        return stage == "before_train_iter" and self._waits is not None

    @override
    def before_train_iter(self, runner: RunView, batch_idx: int, data_batch: Any = None) -> None:
        if self._waits is None:  # a loop of the user's own, which times no batches
            self._before_iter(runner, batch_idx)

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        hub, waits = runner.message_hub, self._waits
        if hub is not self._hub:  # the first step of a run
            self._hub = hub
            self._note_wait, self._note_step = map(hub.recorder, ("train/data_time", "train/time"))
        if waits is not None:
            self._note_wait(waits.take_s())
        if self._is_extended:
            self._after_iter(runner, batch_idx, data_batch, outputs)
            return
        now = time.perf_counter()
        self._note_step(now - self._last)
        self._last = now

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
        runner.message_hub.update_scalar(f"{mode}/time", now - self._last)
        self._last = now
