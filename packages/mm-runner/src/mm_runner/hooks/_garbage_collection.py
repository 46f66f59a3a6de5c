"""Collects Python's garbage on all processes after the same steps."""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from ._arguments import check_integer
from ._hook import Hook

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

__all__ = ["GarbageCollectionHook"]

_YOUNG, _OLD = 1, 2  # generations of Python's collector
_TIMES_PER_OLD = 10


class GarbageCollectionHook(Hook):
    """Switches Python's automatic collection of cycles off in training, and collects by steps.

    By default each process collects when it has made enough objects, at another step each, and the
    others wait for it in their next collective. With this hook all of them collect after the same
    steps: young objects every ``interval`` steps; all of them every tenth time, before training,
    after each epoch, and after each validation. Automatic collection is switched on again when
    training ends. Workers that load data keep theirs.

    Args:
        interval: Steps from one collection to the next. Defaults to 1000.

    Raises:
        ConfigError: If ``interval`` is not a positive integer.
    """

    priority = "LOWEST"

    def __init__(self, interval: int = 1000) -> None:
        check_integer("GarbageCollectionHook.interval", interval, least=1)
        self.interval = interval
        self._is_off = False

    @override
    def before_train(self, runner: RunView) -> None:
        gc.collect()
        if gc.isenabled():  # what the user has switched off stays off
            gc.disable()
            self._is_off = True
            if hasattr(os, "register_at_fork"):
                os.register_at_fork(after_in_child=gc.enable)  # workers that load data

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        step = runner.iter + 1
        if step % self.interval == 0:
            gc.collect(_YOUNG if step % (_TIMES_PER_OLD * self.interval) else _OLD)

    @override
    def after_train_epoch(self, runner: RunView) -> None:
        gc.collect()

    @override
    def after_val(self, runner: RunView) -> None:
        if runner.is_training:
            gc.collect()

    @override
    def after_train(self, runner: RunView) -> None:
        self._switch_on()

    @override
    def after_run(self, runner: RunView) -> None:
        self._switch_on()  # a train() of the user's own may not clean up

    @override
    def clean_up(self, runner: RunView) -> None:
        self._switch_on()

    def _switch_on(self) -> None:
        if self._is_off:
            self._is_off = False
            gc.enable()
