"""Training, epoch by epoch."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from typing_extensions import override

import mm_dist
from mm_runner.data import DataPosition, is_endless, num_batches
from mm_runner.errors import ConfigError

from ._train_loop import AbstractTrainLoop
from ._validation_schedule import ValidationSchedule, check_positive

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch.utils.data import DataLoader

    from mm_runner.run_view import RunView

__all__ = ["EpochBasedTrainLoop"]


class EpochBasedTrainLoop(AbstractTrainLoop):
    """Train ``max_epochs`` passes over the training set, with validations in between.

    Args:
        runner: The run: model, optimizer wrapper, hooks.
        dataloader: Training batches.
        max_epochs: Epochs to train.
        val_begin: First epoch that is followed by a validation.
        val_interval: Epochs between two validations. The last epoch is always followed by one.
        dynamic_intervals: Pairs ``(epoch, val_interval)``: the interval from that epoch on.

    Raises:
        ConfigError: If a number is out of range, or the loader has no batch or no end.
    """

    by_epoch = True

    def __init__(
        self,
        runner: RunView,
        dataloader: DataLoader[Any],
        max_epochs: int,
        val_begin: int = 1,
        val_interval: int = 1,
        dynamic_intervals: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        check_positive("max_epochs", max_epochs)
        schedule = ValidationSchedule(val_begin, val_interval, dynamic_intervals, last=max_epochs)
        if is_endless(dataloader):
            raise ConfigError(
                "train_dataloader.sampler: an InfiniteSampler was given to a loop over epochs, of "
                "which the first would not end. Give train_cfg=dict(by_epoch=False, "
                "max_iters=...), or a DefaultSampler."
            )
        _check_lengths(mm_dist.all_gather_object(num_batches(dataloader, "train_dataloader")))
        super().__init__(
            runner,
            dataloader,
            schedule,
            max_epochs=max_epochs,
            max_iters=max_epochs * len(dataloader),
        )
        self._has_warned_of_length = False

    def run_epoch(self) -> None:
        """Train on the rest of the current pass over the training set."""
        runner = self.runner
        runner.call_hook("before_train_epoch")
        runner.model.train()
        start = self._pass_start
        batches = self._open_pass(self._begin_batches(start))
        run_iter = self._step_function()
        for index, batch in enumerate(batches, start.batch):
            run_iter(index, batch)
        self._check_drawn(start, self._batches_done - start.batch)
        runner.call_hook("after_train_epoch")
        self.epoch += 1

    run_iter = AbstractTrainLoop._run_step  # noqa: SLF001 - takes the same

    def _begin_batches(self, start: DataPosition) -> Iterator[Any]:
        batches = self.batches.begin(start)
        return batches if self._limit is None else islice(batches, self._limit)

    def _check_drawn(self, start: DataPosition, num_drawn: int) -> None:
        """Compare the number of batches with the loader's length, which schedules depend on."""
        length = self.batches.num_left(start) if start.is_begun else self.batches.length
        if num_drawn in (length, self._limit) or length is None:
            return
        found = f"train_dataloader gave {num_drawn} batches in an epoch, and its length is {length}"
        if num_drawn == 0:
            raise ConfigError(f"{found}. Let the dataset begin anew whenever it is iterated over.")
        if not self._has_warned_of_length:
            self._has_warned_of_length = True
            self.runner.logger.warning(
                f"{found}: schedules by step, accumulation and the progress bar use the latter. "
                "Correct the dataset's __len__, or that of the batch sampler."
            )

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        start = DataPosition(**state["position"])
        self.epoch = self._epochs_done = start.epoch  # a loop over steps counted passes only
        left = self.batches.num_left(start)
        if left is not None and not self._is_overridden("run_iter"):
            # Another number of processes, or another batch size, takes another number of steps.
            whole_epochs = self.max_epochs - self.epoch - 1
            to_come = left + whole_epochs * len(self.dataloader) if whole_epochs >= 0 else 0
            self.max_iters = self.iter + to_come
        if self.epoch + start.is_begun > self.max_epochs:
            begun = " and a part of the next" if start.is_begun else ""
            self.runner.logger.warning(
                f"max_epochs={self.max_epochs} was asked for and {self.epoch} "
                f"epoch{'s' if self.epoch > 1 else ''}{begun} are done: there is nothing to train. "
                "To train on, ask for more."
            )

    @override
    def _train(self) -> None:
        while self.epoch < self._last_count and not self.stop_training:
            self.run_epoch()
            if self._is_due():
                self._validate()

    @property
    @override
    def _count(self) -> int:
        return self.epoch

    @property
    @override
    def _last_count(self) -> int:
        return self.max_epochs if self._limit is None else 1

    @override
    def _data_position(self) -> DataPosition:
        is_within = self._epochs_done == self.epoch and self._iters_done > self._iters_at_pass_begin
        is_counted = self.batches.is_seekable and self._batches_done
        if is_within and self._has_own_body and not is_counted:
            self._warn_of_position()
            return DataPosition(self._epochs_done, samples=0)
        if self._epochs_done > self.epoch or self._batches_done == 0:
            return self.batches.next_pass(self._epochs_done)
        return self.batches.position(self._batches_done)

    @override
    def _is_at_validation(self) -> bool:
        is_within = self._resumed is not None and DataPosition(**self._resumed["position"]).is_begun
        return super()._is_at_validation() and not is_within


def _check_lengths(lengths: list[int]) -> None:
    """Raise, on all processes alike, if one of them would have nothing to do or wait for others."""
    if 0 in lengths:
        raise ConfigError(
            "train_dataloader gives no batch: the dataset is smaller than one batch and drop_last "
            "is set. Make batch_size smaller, or drop_last false."
        )
    if len(set(lengths)) > 1:
        shortest, longest = min(lengths), max(lengths)
        raise ConfigError(
            f"train_dataloader has {longest} batches on process {lengths.index(longest)}, and "
            f"{shortest} on process {lengths.index(shortest)}: the former would wait for the "
            "latter without end. Let the sampler give each process equally many samples: "
            "sampler=dict(type='DefaultSampler', round_up=True), or drop_last=True."
        )
