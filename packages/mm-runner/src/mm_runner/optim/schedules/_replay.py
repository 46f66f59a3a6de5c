"""Replay the schedules of an optimizer from the beginning."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ._param_scheduler import ParamScheduler

__all__ = ["replay"]


def replay(schedulers: Sequence[ParamScheduler], num_iters: int, epoch_length: int | None) -> None:
    """Repeat all steps of schedules from the initial values of the optimizer.

    Each value follows from the one before, so only this gives the values of the configuration at
    this position, to the last bit, after its windows have changed. Steps are taken in the order of
    training: after each iteration those by iteration, after each epoch those by epoch, and then
    what a metric has changed.

    Args:
        schedulers: All of one optimizer, each at its position.
        num_iters: Iterations of the run so far. A schedule that has taken fewer steps was held by
            steps that overflowed, most of which are the first ones.
        epoch_length: Iterations of an epoch, ``None`` if not known.
    """
    done = [scheduler.rewind() for scheduler in schedulers]
    for scheduler in schedulers:
        scheduler.start()
    steps = list(zip(schedulers, done, strict=True))
    num_epochs = max((num for one, num in steps if one.by_epoch), default=0)
    num_iters = max([num_iters, *(num for one, num in steps if not one.by_epoch)])
    length = _iters_of_epoch(num_iters, num_epochs, epoch_length)
    # Which of the steps of the run is the first that it takes part in.
    by_iter = [(one.step, num_iters - num) for one, num in steps if not one.by_epoch]
    by_epoch = [(one, num_epochs - num) for one, num in steps if one.by_epoch]
    for one, first in by_epoch:
        if first < num_epochs:
            one.repeat()
    for epoch in range(num_epochs):
        _step(by_iter, epoch * length, (epoch + 1) * length)
        now = [one for one, first in by_epoch if epoch >= first]
        for one in now:
            one.step()
        for one in now:
            one.repeat()
    _step(by_iter, num_epochs * length, num_iters)
    # A run by iterations counts no epochs, so that it is not known when a metric changed something.
    for one, first in by_epoch:
        if first == num_epochs:
            one.repeat()


def _iters_of_epoch(num_iters: int, num_epochs: int, epoch_length: int | None) -> int:
    """Return the length of the epochs that are done; they may have had another one."""
    if epoch_length and num_epochs * epoch_length <= num_iters < (num_epochs + 1) * epoch_length:
        return epoch_length
    return num_iters // max(num_epochs, 1)


def _step(by_iter: Sequence[tuple[Callable[[], None], int]], begin: int, end: int) -> None:
    begin = max(begin, min((first for _, first in by_iter), default=end))
    for index in range(begin, end):
        for step, first in by_iter:
            if index >= first:
                step()
