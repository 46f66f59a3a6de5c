"""Training, epoch by epoch or step by step."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from typing_extensions import override

import mm_dist
from mm_runner.data import DataPosition, is_endless, num_batches
from mm_runner.errors import ConfigError
from mm_runner.registry import check_integer

from ._train_loop import AbstractTrainLoop

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch.utils.data import DataLoader

    from mm_runner.run_view import RunView


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
        check_integer("train_cfg.max_epochs", max_epochs, least=1)
        if is_endless(dataloader):
            raise ConfigError(
                "train_dataloader.sampler: an InfiniteSampler was given to a loop over epochs, of "
                "which the first would not end. Give train_cfg=dict(by_epoch=False, "
                "max_iters=...), or a DefaultSampler."
            )
        _check_lengths(mm_dist.all_gather_object(num_batches(dataloader, "train_dataloader")))
        max_iters = max_epochs * len(dataloader)
        super().__init__(
            runner, dataloader, max_epochs, max_iters, val_begin, val_interval, dynamic_intervals
        )
        self._warned: set[str] = set()

    def run_epoch(self) -> None:
        """Train on the rest of the current pass over the training set."""
        runner = self.runner
        runner.call_hook("before_train_epoch")
        runner.model.train()
        start = self._pass_start
        batches = islice(self.batches.begin(start), self._limit)
        self._end_resumption()
        run_iter = self._step_function()
        for index, batch in enumerate(batches, start.batch):
            run_iter(index, batch)
        self._check_drawn(start, self._batches_done - start.batch)
        runner.call_hook("after_train_epoch")
        self.epoch += 1

    run_iter = AbstractTrainLoop._run_step  # noqa: SLF001 - takes the same

    def _check_drawn(self, start: DataPosition, num_drawn: int) -> None:
        """Compare the number of batches with the loader's length, which schedules depend on."""
        length = self.batches.num_left(start) if start.is_begun else self.batches.length
        if num_drawn in (length, self._limit) or length is None:
            return
        found = f"train_dataloader gave {num_drawn} batches in an epoch, and its length is {length}"
        if num_drawn == 0:
            raise ConfigError(f"{found}. Let the dataset start over whenever it is iterated over.")
        self._warn_once(
            "length",
            f"{found}: schedules by step, accumulation and the progress bar use the latter. "
            "Correct the dataset's __len__, or that of the batch sampler.",
        )

    def _warn_once(self, about: str, text: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            self.runner.logger.warning(text)

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

    @override
    def _train(self) -> None:
        while self.epoch < self._last_count and not self.stop_training:
            self.run_epoch()
            if self._is_due():
                self._validate()

    @override
    def _data_position(self) -> DataPosition:
        is_within = self._epochs_done == self.epoch and self._iters_done > self._iters_at_pass_begin
        is_counted = self.batches.is_seekable and self._batches_done
        if is_within and self._has_own_body and not is_counted:
            self._warn_once(
                "position",
                f"{type(self).__name__} draws batches in a way that cannot be resumed within an "
                "epoch: a checkpoint written there resumes at the beginning of the epoch. Let "
                "run_epoch() pass the batches of self.dataloader, given as a config, to "
                "run_iter().",
            )
            return DataPosition(self._epochs_done, samples=0)
        if self._epochs_done > self.epoch or self._batches_done == 0:
            return self.batches.next_pass(self._epochs_done)
        return self.batches.position(self._batches_done)


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
        check_integer("train_cfg.max_iters", max_iters, least=1)
        super().__init__(
            runner, dataloader, 1, max_iters, val_begin, val_interval, dynamic_intervals
        )
        self._has_own_body = False  # a body of a subclass draws from dataloader_iterator
        self._under_way: Iterator[Any] | None = None

    @property
    def dataloader_iterator(self) -> Iterator[Any]:
        """The batches of training, pass after pass; a ``run`` of a subclass draws them here."""
        if self._under_way is None:
            if self._step is None:  # before_train_epoch was not called
                self._begin_pass()
            self._under_way = self.batches.endless(self._pass_start, self._note_pass_begin)
            self._end_resumption()
        return self._under_way

    def run_iter(self, data_batch: Any) -> None:
        """Train on one batch, as the loader gave it."""
        self._run_step(self.iter, data_batch)

    @override
    def _train(self) -> None:
        runner, last, run_iter = self.runner, self._last_count, self._step_function()
        runner.call_hook("before_train_epoch")
        batches, is_validated = self.dataloader_iterator, runner.val_loop is not None
        runner.model.train()
        while self.iter < last and not self.stop_training:
            run_iter(next(batches))
            if is_validated and self._is_due():
                self._validate()
                runner.model.train()
        runner.call_hook("after_train_epoch")

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.epoch = self._epochs_done = 0  # passes are counted by the position in the data

    @override
    def _data_position(self) -> DataPosition:
        return self.batches.position()


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
