"""Training, step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typing_extensions import override

from mm_runner.data import DataPosition, announce_epoch
from mm_runner.errors import ConfigError

from ._counted_loader import DrawnBatches
from ._loss_names import naming_losses
from ._train_loop import AbstractTrainLoop
from ._validation_schedule import ValidationSchedule, check_positive

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

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

    _by_epoch = False

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
        self._under_way: Iterator[Any] | None = None
        self._batches_drawn = DrawnBatches(dataloader, self._drawn)
        self._given_iterator: Any = self._batches_drawn
        self._has_other_iterator = False

    @property
    def dataloader_iterator(self) -> Any:
        """The batches of training, pass after pass.

        A ``run`` of a subclass's own draws them, and a ``run_iter`` may take further ones. A
        resumed run goes on with the next one, also where its ``run`` first draws a batch for each
        step that was done. Another iterator that is assigned gives the batches from the next step
        on; of what it does not draw from this one no checkpoint knows the position.

        Raises:
            ConfigError: If what is assigned is no iterator.
        """
        return self._given_iterator

    @dataloader_iterator.setter
    def dataloader_iterator(self, iterator: Any) -> None:
        if not (self._is_drawn_by_own or hasattr(iterator, "__next__")):
            raise ConfigError(
                f"{type(self).__name__}: its dataloader_iterator is to be "
                f"{type(iterator).__name__}, which gives no batches by next(). Give it an iterator "
                "without end, such as itertools.cycle(loader)."
            )
        self._given_iterator, self._has_other_iterator = iterator, True

    @override
    def _note_loader(self) -> None:
        if self.is_drawing:
            self._has_other_iterator = True  # or none, which is to be told

    @override
    def begin_at(self, epoch: int, iteration: int) -> None:
        super().begin_at(epoch, iteration)
        self._batches_drawn.renew()

    @override
    def _watching(self) -> AbstractContextManager[None]:
        self._batches_drawn.renew()  # it may have been looked at before training
        return super()._watching()

    def run_iter(self, data_batch: Any) -> None:
        """Train on one batch, as the loader gave it."""
        self._run_step(self.iter, data_batch)

    @override
    def _train(self) -> None:
        self.is_drawing = True
        try:
            self._go_through()
        finally:
            self.is_drawing, self._under_way = False, None

    def _go_through(self) -> None:
        runner = self.runner
        resumption = self._begin_pass()
        runner.call_hook("before_train_epoch")
        self._take_loader(resumption)
        start = resumption.position if resumption else DataPosition(samples=0)
        batches = self._go_on(self._open_pass(start, endless=True), resumption)
        self._under_way = batches
        self._batches_drawn.renew()  # a hook may have looked at it
        while self.iter < self._last_count and not self.stop_training:
            runner.model.train()
            self._train_to_validation()
            if self._is_due():
                self._validate()
        runner.call_hook("after_train_epoch")

    def _train_to_validation(self) -> None:
        until = self._last_count
        if self.runner.val_loop is not None:
            until = self._schedule.next_after(self.iter)
        with naming_losses(self.runner.message_hub):
            run_iter = self._stepping(IterBasedTrainLoop.run_iter)
            for batch in self._source():
                run_iter(batch)
                if self.iter >= until or self.stop_training or self._has_other_iterator:
                    return
        raise ConfigError(
            f"{type(self).__name__}: the dataloader_iterator that was assigned has ended after "
            f"step {self.iter} of {self.max_iters}. Give it one without end, such as "
            "itertools.cycle(loader)."
        )

    def _source(self) -> Iterator[Any]:
        """Return what the next steps are trained on."""
        self._has_other_iterator = False
        if self._given_iterator is self._batches_drawn:
            if self._given_loader is not self.batches.loader:
                self.runner.logger.warning(
                    f"{type(self).__name__}: dataloader was assigned amid the steps, which go on "
                    "with the loader before, as all of them are one epoch. Assign "
                    "dataloader_iterator as well, such as itertools.cycle(loader)."
                )
            assert self._under_way is not None
            return self._under_way
        if self._given_loader is not self.batches.loader:  # nobody draws from that any more
            self._close_batches()
        return self._drawn_elsewhere(self._given_iterator)

    def _drawn_elsewhere(self, batches: Any) -> Iterator[Any]:
        """Draw from what was assigned, which may draw from :attr:`batches` in turn."""
        while True:
            before = self.batches.epoch, self.batches.batch
            try:
                batch = next(batches)
            except StopIteration:
                return
            if self._knows_place and before == (self.batches.epoch, self.batches.batch):
                self._knows_place = False
                self.runner.logger.warning(
                    f"{type(self).__name__} trains on batches of the dataloader_iterator that was "
                    "assigned: a checkpoint cannot say where in the data it was written, and a run "
                    "that goes on from it begins the data anew."
                )
            yield batch

    @override
    def _open_pass(self, start: DataPosition, *, endless: bool) -> Iterator[Any]:
        if endless:
            return self.batches.endless(start.epoch, start, self._note_begin)
        announce_epoch(self.batches.loader, start.epoch)
        return self.batches.begin(start.epoch, start)

    def _drawn(self) -> Iterator[Any]:
        """Return what :attr:`dataloader_iterator` draws, once it is asked for a batch."""
        if self._under_way is not None:
            return self._under_way
        return iter(self.dataloader) if self._own is None else self._own.open(endless=True)

    @override
    def resume(self, resumption: Resumption) -> None:
        super().resume(resumption)
        self.epoch = self._epochs_done = 0  # the passes are the data's
        if self.iter > self.max_iters:
            self.runner.logger.warning(
                f"max_iters={self.max_iters} was asked for and {self.iter} steps are done: there "
                "is nothing to train. To train on, ask for more."
            )

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
        return self.batches.position() if self._knows_place else DataPosition(samples=0)
