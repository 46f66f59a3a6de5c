"""Training, epoch by epoch."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

import mm_dist
from mm_runner._main_process import run_on_main
from mm_runner.checkpoint import is_validated, mark_validated, rng_state, set_rng_state
from mm_runner.data import num_batches
from mm_runner.errors import CheckpointWriteError, ConfigError
from mm_runner.model import train_step_of

from ._loss_names import naming_losses

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.utils.data import DataLoader

__all__ = ["EpochBasedTrainLoop"]


class EpochBasedTrainLoop:
    """Goes through the training set ``max_epochs`` times, with a validation now and then.

    Args:
        runner: The run: model, optimizer wrapper, hooks.
        dataloader: Training batches.
        max_epochs: Epochs to train.
        val_begin: First epoch that is followed by a validation.
        val_interval: Epochs between two validations. The last epoch is always followed by one.
        dynamic_intervals: Pairs ``(epoch, val_interval)``: from that epoch on the other interval.

    Raises:
        ConfigError: If a number is out of range, or the loader has no batch.
    """

    def __init__(
        self,
        runner: Any,
        dataloader: DataLoader[Any],
        max_epochs: int,
        val_begin: int = 1,
        val_interval: int = 1,
        dynamic_intervals: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        for name, value in (
            ("max_epochs", max_epochs),
            ("val_begin", val_begin),
            ("val_interval", val_interval),
        ):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"train_cfg.{name}: a positive integer is needed, got {value!r}.")
        if num_batches(dataloader, "train_dataloader") == 0:
            raise ConfigError(
                "train_dataloader gives no batch: the dataset is smaller than one batch and "
                "drop_last is set. Make batch_size smaller, or drop_last false."
            )
        self.runner = runner
        self.dataloader = dataloader
        self.max_epochs = max_epochs
        self.max_iters = max_epochs * len(dataloader)
        self.val_begin = val_begin
        self.epoch = 0
        self.iter = 0
        changes = sorted(dynamic_intervals or ())
        self._interval_epochs = [0, *(epoch for epoch, _ in changes)]
        self._intervals = [val_interval, *(interval for _, interval in changes)]

    @property
    def val_interval(self) -> int:
        """Epochs between two validations, at the present epoch."""
        return self._intervals[bisect_right(self._interval_epochs, self.epoch) - 1]

    def run(self) -> None:
        """Train from :attr:`epoch` to the end."""
        runner = self.runner
        runner.call_hook("before_train")
        step = train_step_of(runner.model)
        if self.epoch > 0 and not run_on_main(
            lambda: is_validated(runner.work_dir, self.epoch, runner.seed)
        ):
            # Checkpoints are written before the validation, which the stop then cut off.
            self._validate_if_due()
        while self.epoch < self.max_epochs:
            self._run_epoch(step)
            self._validate_if_due()
        runner.call_hook("after_train")

    def _run_epoch(self, step: Any) -> None:
        runner = self.runner
        runner.call_hook("before_train_epoch")
        runner.model.train()
        with naming_losses(runner.message_hub):
            for index, batch in enumerate(self.dataloader):
                self._run_iter(step, index, batch)
        runner.call_hook("after_train_epoch")
        self.epoch += 1

    def _run_iter(self, step: Any, index: int, batch: Any) -> None:
        runner = self.runner
        mm_dist.mark_iteration(self.iter + 1)
        runner.call_hook("before_train_iter", batch_idx=index, data_batch=batch)
        outputs = step(batch, runner.optim_wrapper)
        runner.call_hook("after_train_iter", batch_idx=index, data_batch=batch, outputs=outputs)
        self.iter += 1
        if index == 0:  # kernels are compiled: dist_cfg's steady_timeout may hold
            mm_dist.enter_steady_state()

    def _validate_if_due(self) -> None:
        if self.runner.val_loop is None or not self._validation_is_due():
            return
        # Training draws the same random numbers with and without a validation in between.
        runner = self.runner
        state = rng_state(runner.device)
        runner.val_loop.run()
        set_rng_state(state, runner.device)
        try:
            run_on_main(lambda: mark_validated(runner.work_dir, self.epoch, runner.seed))
        except CheckpointWriteError as error:
            runner.logger.warning(f"{error} A run that resumes here validates once more.")

    def _validation_is_due(self) -> bool:
        if self.epoch == self.max_epochs:
            return True
        return self.epoch >= self.val_begin and self.epoch % self.val_interval == 0
