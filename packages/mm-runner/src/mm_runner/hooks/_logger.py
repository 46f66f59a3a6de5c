"""Log lines, the progress bar, and the file of scalars."""

from __future__ import annotations

import time
from typing import Any

from typing_extensions import override

from mm_runner.errors import ConfigError

from ._hook import Hook

__all__ = ["LoggerHook"]


class LoggerHook(Hook):
    """Logs a line per interval and after each validation, and moves the progress bar.

    Args:
        interval: Training steps between two lines.
        ignore_last: Write no line for the steps after the last full interval of an epoch.

    Raises:
        ConfigError: If ``interval`` is not a positive integer.
    """

    priority = "BELOW_NORMAL"

    def __init__(self, interval: int = 10, ignore_last: bool = True) -> None:  # noqa: FBT001, FBT002 - MMEngine's
        if not isinstance(interval, int) or isinstance(interval, bool) or interval < 1:
            raise ConfigError(
                f"LoggerHook.interval: a positive number of steps is needed, got {interval!r}."
            )
        self.interval = interval
        self.ignore_last = ignore_last
        self._started_s = 0.0
        self._first_iter = 0

    @override
    def before_train(self, runner: Any) -> None:
        self._started_s = time.perf_counter()
        self._first_iter = runner.iter
        runner.console.start_progress("training", runner.max_iters, runner.iter)

    @override
    def before_train_epoch(self, runner: Any) -> None:
        epoch = f"epoch {runner.epoch + 1}/{runner.max_epochs}"
        runner.console.update_progress(runner.iter, description=epoch)

    @override
    def after_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        runner.console.update_progress(runner.iter + 1)
        steps = len(runner.train_dataloader)
        # An epoch shorter than the interval would otherwise never show up.
        last_line = batch_idx + 1 == steps and (not self.ignore_last or steps < self.interval)
        if self.every_n_inner_iters(batch_idx, self.interval) or last_line:
            self._log_training(runner, batch_idx + 1, steps)

    @override
    def after_train(self, runner: Any) -> None:
        runner.console.update_progress(runner.iter, values="")
        runner.console.stop_progress()

    @override
    def after_val_epoch(self, runner: Any, metrics: dict[str, float] | None = None) -> None:
        self._log_metrics(runner, "val", len(runner.val_dataloader), metrics or {})

    @override
    def after_test_epoch(self, runner: Any, metrics: dict[str, float] | None = None) -> None:
        self._log_metrics(runner, "test", len(runner.test_dataloader), metrics or {})

    def _log_training(self, runner: Any, step: int, steps: int) -> None:
        # Under some optimizers the learning rate is a tensor.
        rates = runner.optim_wrapper.get_lr()
        scalars = {name: float(of_groups[0]) for name, of_groups in rates.items()}
        scalars.update(runner.message_hub.means("train"))
        position = f"[{runner.epoch + 1}][{step:>{len(str(steps))}}/{steps}]"
        line = runner.log_processor.line("train", position, scalars, eta_s=self._eta_s(runner))
        runner.logger.info(line)
        if "loss" in scalars:
            runner.console.update_progress(runner.iter + 1, values=f"loss {scalars['loss']:.4f}")
        runner.write_scalars("train", scalars, step=runner.iter + 1)

    def _log_metrics(self, runner: Any, phase: str, steps: int, metrics: dict[str, float]) -> None:
        # A metric may be a table or text: lines and files show numbers.
        numbers = {k: v for k, v in metrics.items() if isinstance(v, (int, float))}
        times = runner.message_hub.means(phase)
        runner.message_hub.clear(phase)
        position = f"[{runner.epoch}][{steps}/{steps}]"
        runner.logger.info(runner.log_processor.line(phase, position, {**times, **numbers}))
        runner.write_scalars(phase, {**numbers, **times}, step=runner.iter)

    def _eta_s(self, runner: Any) -> float:
        done: int = runner.iter + 1 - self._first_iter
        spent = time.perf_counter() - self._started_s
        # A run resumed on other data or processes may have done more steps than it would do now.
        left: int = max(runner.max_iters - runner.iter - 1, 0)
        return spent / done * left
