"""Training, step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typing_extensions import override

from mm_runner.data import DataPosition

from ._train_loop import AbstractTrainLoop
from ._validation_schedule import ValidationSchedule, check_positive

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch.utils.data import DataLoader

    from mm_runner.run_view import RunView

__all__ = ["IterBasedTrainLoop"]


class IterBasedTrainLoop(AbstractTrainLoop):
    """Train ``max_iters`` steps, with validations in between.

    The data is gone through as often as that takes; with an ``InfiniteSampler``, or an iterable
    dataset without end, once. To hooks the whole training is one epoch.

    Args:
        runner: The run: model, optimizer wrapper, hooks.
        dataloader: Training batches; they need no length.
        max_iters: Steps to train.
        val_begin: First step that is followed by a validation.
        val_interval: Steps between two validations. The last step is always followed by one.
        dynamic_intervals: Pairs ``(step, val_interval)``: the interval from that step on.

    Raises:
        ConfigError: If a number is out of range.
    """

    by_epoch = False

    def __init__(
        self,
        runner: RunView,
        dataloader: DataLoader[Any],
        max_iters: int,
        val_begin: int = 1,
        val_interval: int = 1000,
        dynamic_intervals: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        check_positive("max_iters", max_iters)
        schedule = ValidationSchedule(val_begin, val_interval, dynamic_intervals, last=max_iters)
        super().__init__(
            runner,
            dataloader,
            schedule,
            max_epochs=1,
            max_iters=max_iters,
        )
        self._has_own_body = False  # a body of a subclass draws from dataloader_iterator
        self._under_way: Iterator[Any] | None = None

    @property
    def dataloader_iterator(self) -> Iterator[Any]:
        """The batches of training, pass after pass; a ``run`` of a subclass draws them here."""
        if self._under_way is None:
            if not self._at_pass_begin:  # before_train_epoch was not called
                self._begin_pass()
            batches = self.batches.endless(self._pass_start, self._note_pass_begin)
            self._under_way = self._open_pass(batches)
        return self._under_way

    def run_iter(self, data_batch: Any) -> None:
        """Train on one batch, as the loader gave it."""
        self._run_step(self.iter, data_batch)

    @override
    def _train(self) -> None:
        runner = self.runner
        runner.call_hook("before_train_epoch")
        batches = self.dataloader_iterator
        while self.iter < self._last_count and not self.stop_training:
            runner.model.train()
            self._train_to_validation(batches)
            if self._is_due():
                self._validate()
        runner.call_hook("after_train_epoch")

    def _train_to_validation(self, batches: Iterator[Any]) -> None:
        until = self._last_count
        if self.runner.val_loop is not None:
            until = self._schedule.next_after(self.iter)
        run_iter = self._step_function()
        while self.iter < until and not self.stop_training:
            run_iter(next(batches))

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.epoch = self._epochs_done = 0  # passes are counted by the position in the data
        if self.iter > self.max_iters:
            self.runner.logger.warning(
                f"max_iters={self.max_iters} was asked for and {self.iter} steps are done: there "
                "is nothing to train. To train on, ask for more."
            )

    @property
    @override
    def _count(self) -> int:
        return self.iter

    @property
    @override
    def _last_count(self) -> int:
        return self.max_iters if self._limit is None else min(self._limit, self.max_iters)

    @override
    def _data_position(self) -> DataPosition:
        return self.batches.position()
