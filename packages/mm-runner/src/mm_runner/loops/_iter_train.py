"""Training, step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typing_extensions import override

from mm_runner.data import DataPosition

from ._loss_names import naming_losses
from ._train_loop import AbstractTrainLoop
from ._validation_schedule import ValidationSchedule, check_positive

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch.utils.data import DataLoader

    from ._resumption import Resumption

__all__ = ["IterBasedTrainLoop"]


class IterBasedTrainLoop(AbstractTrainLoop):
    """Trains ``max_iters`` steps, with a validation now and then.

    The data is gone through as often as that takes; with an ``InfiniteSampler``, or an iterable
    dataset without end, once. To hooks the whole training is one epoch.

    Args:
        runner: The run: model, optimizer wrapper, hooks.
        dataloader: Training batches; they need no length.
        max_iters: Steps to train.
        val_begin: First step that is followed by a validation.
        val_interval: Steps between two validations. The last step is always followed by one.
        dynamic_intervals: Pairs ``(step, val_interval)``: from that step on the other interval.
        sanity_val_batches: Before training, so many batches are validated to see that it works;
            training goes as it would without, and a resumed run leaves it out. Defaults to 0.

    Raises:
        ConfigError: If a number is out of range.
    """

    def __init__(
        self,
        runner: Any,
        dataloader: DataLoader[Any],
        max_iters: int,
        val_begin: int = 1,
        val_interval: int = 1000,
        dynamic_intervals: Sequence[tuple[int, int]] | None = None,
        sanity_val_batches: int = 0,
    ) -> None:
        check_positive("max_iters", max_iters)
        schedule = ValidationSchedule(val_begin, val_interval, dynamic_intervals, last=max_iters)
        super().__init__(
            runner,
            dataloader,
            schedule,
            max_epochs=1,
            max_iters=max_iters,
            sanity_val_batches=sanity_val_batches,
        )

    def run_iter(self, data_batch: Any) -> None:
        """Train on one batch, as the loader gave it."""
        self._run_step(self.iter, data_batch)

    @override
    def _train(self) -> None:
        runner = self.runner
        resumption = self._begin_pass()
        runner.call_hook("before_train_epoch")
        batches = self._draw(resumption)
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
        with naming_losses(self.runner.message_hub):
            run_iter = self._stepping(IterBasedTrainLoop.run_iter)
            for batch in batches:
                run_iter(batch)
                if self.iter >= until or self.stop_training:
                    return

    def _draw(self, resumption: Resumption | None) -> Iterator[Any]:
        start = None if resumption is None else resumption.position
        first_pass = 0 if start is None else start.epoch
        batches = self.batches.endless(first_pass, start, self._note_begin)
        return self._go_on(batches, resumption)

    @override
    def resume(self, resumption: Resumption) -> None:
        super().resume(resumption)
        self.epoch = self._epochs_done = 0  # the passes are the data's

    @override
    def position_after(self, epoch: int, iteration: int) -> DataPosition:
        length = self.batches.length
        whole, rest = (0, iteration) if length is None else divmod(iteration, length)
        return DataPosition(whole, rest)

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
