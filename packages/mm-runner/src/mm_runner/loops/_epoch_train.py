"""Training, epoch by epoch."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from typing_extensions import override

import mm_dist
from mm_runner.data import DataPosition, announce_epoch, is_endless, num_batches
from mm_runner.errors import ConfigError

from ._loss_names import naming_losses
from ._train_loop import AbstractTrainLoop
from ._validation_schedule import ValidationSchedule, check_positive

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch.utils.data import DataLoader

    from ._resumption import Resumption

__all__ = ["EpochBasedTrainLoop"]


class EpochBasedTrainLoop(AbstractTrainLoop):
    """Goes through the training set ``max_epochs`` times, with a validation now and then.

    Args:
        runner: The run: model, optimizer wrapper, hooks.
        dataloader: Training batches.
        max_epochs: Epochs to train.
        val_begin: First epoch that is followed by a validation.
        val_interval: Epochs between two validations. The last epoch is always followed by one.
        dynamic_intervals: Pairs ``(epoch, val_interval)``: from that epoch on the other interval.
        sanity_val_batches: Before training, so many batches are validated to see that it works;
            training goes as it would without, and a resumed run leaves it out. Defaults to 0.

    Raises:
        ConfigError: If a number is out of range, or the loader has no batch or no end.
    """

    _by_epoch = True

    def __init__(
        self,
        runner: Any,
        dataloader: DataLoader[Any],
        max_epochs: int,
        val_begin: int = 1,
        val_interval: int = 1,
        dynamic_intervals: Sequence[tuple[int, int]] | None = None,
        sanity_val_batches: int = 0,
    ) -> None:
        check_positive("max_epochs", max_epochs)
        schedule = ValidationSchedule(val_begin, val_interval, dynamic_intervals, last=max_epochs)
        _check_lengths(mm_dist.all_gather_object(num_batches(dataloader, "train_dataloader")))
        super().__init__(
            runner,
            dataloader,
            schedule,
            max_epochs=max_epochs,
            max_iters=max_epochs * len(dataloader),
            sanity_val_batches=sanity_val_batches,
        )
        self._is_length_told = False
        # Before and after a run was resumed.
        self._max_iters_of_resumption = (0, 0)

    def run_epoch(self) -> None:
        """Go through the training set once, or through what is left of it."""
        self.is_drawing = True
        try:
            self._go_through()
        finally:
            self.is_drawing = False
        self.epoch += 1

    def _go_through(self) -> None:
        runner = self.runner
        resumption = self._begin_pass()
        runner.call_hook("before_train_epoch")
        runner.model.train()
        self._take_loader(resumption)  # those hooks may have assigned another one
        start = resumption.position if resumption else DataPosition(self.epoch, samples=0)
        self._batches_done = start.batch
        batches = self._go_on(self._open_pass(start, endless=False), resumption)
        with naming_losses(runner.message_hub):
            run_iter = self._stepping(EpochBasedTrainLoop.run_iter)
            for index, batch in enumerate(batches, start.batch):
                run_iter(index, batch)
        self._check_drawn(start, self._batches_done - start.batch)
        self._epochs_done, self._batches_done = self.epoch + 1, 0
        runner.call_hook("after_train_epoch")

    def run_iter(self, idx: int, data_batch: Any) -> None:
        """Train on one batch.

        Args:
            idx: Its number in the epoch, counted from 0.
            data_batch: As the loader gave it.
        """
        self._run_step(idx, data_batch)

    def _check_drawn(self, start: DataPosition, num_drawn: int) -> None:
        """Tell if the loader's length, which schedules and progress go by, is not the true one."""
        length = self.batches.num_left(start) if start.is_begun else self.batches.length
        if num_drawn in (length, self._limit) or length is None:
            return
        told = f"train_dataloader gave {num_drawn} batches in an epoch, and its length is {length}"
        if num_drawn == 0:
            raise ConfigError(f"{told}. Let the dataset begin anew whenever it is iterated over.")
        if not self._is_length_told:
            self.runner.logger.warning(
                f"{told}: schedules by step, accumulation and the progress shown go by the latter. "
                "Correct the dataset's __len__, or that of the batch sampler."
            )
            self._is_length_told = True

    @override
    def resume(self, resumption: Resumption) -> None:
        super().resume(resumption)
        start = resumption.position
        self.epoch = self._epochs_done = start.epoch  # a loop over steps counted passes only
        left = self.batches.num_left(start)
        before = self.max_iters
        if left is not None and not self._has_own_steps(resumption):
            # Another number of processes, or another batch size, takes another number of steps.
            whole_epochs = self.max_epochs - self.epoch - 1
            to_come = left + whole_epochs * len(self.dataloader) if whole_epochs >= 0 else 0
            self.max_iters = self.iter + to_come
        self._max_iters_of_resumption = before, self.max_iters
        if self.epoch + start.is_begun > self.max_epochs:
            begun = " and a part of the next" if start.is_begun else ""
            self.runner.logger.warning(
                f"max_epochs={self.max_epochs} was asked for and {self.epoch} "
                f"epoch{'s' if self.epoch > 1 else ''}{begun} are done: there is nothing to train. "
                "To train on, ask for more."
            )

    @override
    def _take_loader(self, resumption: Resumption | None) -> bool:
        is_other = super()._take_loader(resumption)
        if is_other:  # DistSamplerSeedHook has told the one before it
            announce_epoch(self.batches.loader, self.epoch)
        if is_other and resumption is not None:
            before, resumed = self._max_iters_of_resumption
            # With the loader of the run before there are as many steps, unless a hook says more.
            if self.batches.length == resumption.position.num_batches and self.max_iters == resumed:
                self.max_iters = before
        return is_other

    def _has_own_steps(self, resumption: Resumption) -> bool:
        """Tell whether a body of a subclass's own may take another number of steps than batches.

        As long as the batches are those of the run before, there are to be as many steps.
        """
        is_alike = resumption.position.num_batches in (None, len(self.dataloader))
        return self._own is not None and is_alike and bool(resumption.state["rng"])

    @override
    def _check_loader(self, loader: Any) -> None:
        super()._check_loader(loader)
        if not _length_of(loader):
            raise ConfigError(
                f"{type(self).__name__}: its dataloader is to be {type(loader).__name__}, which "
                "has no length, or no batch, and is gone through in each epoch. Give it a "
                "DataLoader, or something with __iter__ and __len__ around one."
            )
        if is_endless(loader):
            raise ConfigError(
                "train_dataloader.sampler: an InfiniteSampler was given to a loop over epochs, of "
                "which the first would not end. Give train_cfg=dict(by_epoch=False, "
                "max_iters=...), or a DefaultSampler."
            )

    @override
    def position_after(self, epoch: int, iteration: int) -> DataPosition:
        return DataPosition(epoch, samples=0)

    @override
    def _open_pass(self, start: DataPosition, *, endless: bool) -> Iterator[Any]:
        # What has a state of its own has yet to find its end, to begin the next pass there.
        has_state = start.state is not None and self.batches.is_stateful
        is_at_end = start.is_complete and not has_state
        if is_at_end:
            self.batches.pass_over()
        batches = iter(()) if is_at_end else self.batches.begin(self.epoch, start)
        return batches if self._limit is None else islice(batches, self._limit)

    @override
    def _train(self) -> None:
        while self.epoch < self._last_count and not self.stop_training:
            self.run_epoch()
            if self._is_due():
                if self.epoch < self._last_count and not self.stop_training:
                    self.batches.begin_ahead(self.epoch)
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
        if self._epochs_done > self.epoch or self._batches_done == 0:
            dataset = self.batches.stateful_dataset if self._knows_place else None
            state = None if dataset is None else dataset.state_dict()  # of the passes to come
            return DataPosition(self._epochs_done, samples=0, state=state)
        return self.batches.position(self._batches_done)

    @override
    def _is_at_validation(self) -> bool:
        is_within_epoch = self._resumption is not None and self._resumption.position.is_begun
        return super()._is_at_validation() and not is_within_epoch


def _length_of(loader: Any) -> int:
    try:
        return len(loader)
    except TypeError:
        return 0


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
