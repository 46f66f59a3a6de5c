"""Times steps."""

from __future__ import annotations

import time
from typing import Any

from typing_extensions import override

from ._hook import Hook

__all__ = ["IterTimerHook"]


class IterTimerHook(Hook):
    """Puts seconds per step (``time``) and seconds waited for data (``data_time``) into the hub.

    Steps are timed on the host. A device that lags behind is noticed as soon as its queue is full,
    so means over a window are right; a single step may look short.
    """

    def __init__(self) -> None:
        self._last = 0.0

    @override
    def _before_epoch(self, runner: Any, mode: str = "train") -> None:
        self._last = time.perf_counter()

    @override
    def _before_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, mode: str = "train"
    ) -> None:
        waited = time.perf_counter() - self._last
        runner.message_hub.update_scalar(f"{mode}/data_time", waited)

    @override
    def _after_iter(
        self,
        runner: Any,
        batch_idx: int,
        data_batch: Any = None,
        outputs: Any = None,
        mode: str = "train",
    ) -> None:
        now = time.perf_counter()
        runner.message_hub.update_scalar(f"{mode}/time", now - self._last)
        self._last = now
