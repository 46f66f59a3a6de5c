"""Lets all processes collect Python's garbage at the same time."""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from mm_runner.errors import ConfigError

from ._hook import Hook

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

__all__ = ["GarbageCollectionHook"]

# Cycles that were made lately: nearly all of them, and found in little time.
_YOUNG, _ALL = 1, 2
# What has lived through one of these is looked at only when all is, and an epoch may be a whole run
# long: so often in place of these.
_TIMES_PER_ALL = 10


class GarbageCollectionHook(Hook):
    """Switches Python's automatic collection of cycles off in training, and collects by steps.

    Left alone, each process collects when it has made enough objects, some other step each time,
    and the others wait for it in their next exchange. With this hook all of them collect after the
    same steps: young objects every ``interval`` steps; all of them every tenth time, before
    training, after each epoch, and after each validation, in which nothing is collected either.
    Once training has ended, in whatever way, collection is as it was. Workers that load data
    collect as ever.

    Args:
        interval: Steps from one collection to the next. Defaults to 1000.

    Raises:
        ConfigError: If ``interval`` is not a positive integer.
    """

    priority = "LOWEST"

    def __init__(self, interval: int = 1000) -> None:
        if not isinstance(interval, int) or isinstance(interval, bool) or interval < 1:
            raise ConfigError(
                "GarbageCollectionHook.interval: a positive number of steps is needed, got "
                f"{interval!r}."
            )
        self.interval = interval
        self._is_off = False

    @override
    def before_train(self, runner: RunView) -> None:
        gc.collect()
        if gc.isenabled():  # what somebody else has switched off stays off
            _switch.off()
            self._is_off = True

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        step = runner.iter + 1
        if step % self.interval == 0:
            gc.collect(_YOUNG if step % (_TIMES_PER_ALL * self.interval) else _ALL)

    @override
    def after_train_epoch(self, runner: RunView) -> None:
        gc.collect()  # what has grown old unnoticed

    @override
    def after_val(self, runner: RunView) -> None:
        if runner.is_training:
            gc.collect()

    @override
    def after_train(self, runner: RunView) -> None:
        self.clean_up(runner)  # a train() of the user's own may not come to it

    @override
    def after_run(self, runner: RunView) -> None:
        self.clean_up(runner)

    @override
    def clean_up(self, runner: RunView) -> None:
        if self._is_off:
            self._is_off = False
            _switch.on()


class _Switch:
    """Of the automatic collection in this process; those that it forks have theirs on."""

    def __init__(self) -> None:
        self._is_off = self._minds_forks = False

    def off(self) -> None:
        if not self._minds_forks and hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.on)
            self._minds_forks = True
        self._is_off = True
        gc.disable()

    def on(self) -> None:
        if self._is_off:
            self._is_off = False
            gc.enable()


_switch = _Switch()
