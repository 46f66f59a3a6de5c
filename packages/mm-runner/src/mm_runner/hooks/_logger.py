"""Log lines, the progress bar, and the file of scalars."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor
from typing_extensions import override

import mm_dist
from mm_runner.errors import ConfigError
from mm_runner.evaluator import as_number
from mm_runner.reporting import TrainingClock

from ._arguments import check_integer
from ._hook import Hook
from ._scalars import learning_rates, mean_over_ranks

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

__all__ = ["LoggerHook", "count_samples"]


class LoggerHook(Hook):
    """Logs a line per interval, in validations and tests too, and moves the progress bar.

    A number in a training line is the mean over the newest steps (``log_processor.window_size`` of
    them) and over all processes. One that was not finite in any of these is warned of, once.

    Args:
        interval: Steps between two lines, of training or of an evaluation.
        ignore_last: Write no line for the steps after the last full interval of an epoch, or of a
            run by iterations.
        interval_exp_name: Training steps between two lines that name the experiment; ``-1`` for
            none. Defaults to 1000.
        out_dir: Where to copy the run's log files at its end, into a folder named like the work
            directory. Defaults to ``None``: nowhere.
        out_suffix: Endings of the files that are copied.
        keep_local: Whether they stay in the work directory too. Defaults to ``True``.
        file_client_args: Accepted so that MMEngine's configs load; must be ``None``.
        log_metric_by_epoch: Whether writers such as TensorBoard's draw the metrics of a validation
            by epoch (the default) or by training step. Where training counts steps they always
            draw by step, and ``scalars.jsonl`` always has both.
        backend_args: Accepted likewise; must be ``None``.

    Raises:
        ConfigError: If ``interval`` is not a positive integer, or another argument cannot be used.
    """

    priority = "BELOW_NORMAL"

    def __init__(
        self,
        interval: int = 10,
        ignore_last: bool = True,  # noqa: FBT001, FBT002 - MMEngine's signature
        interval_exp_name: int = 1000,
        out_dir: str | Path | None = None,
        out_suffix: str | Sequence[str] = (".json", ".jsonl", ".log", ".py", ".yaml"),
        keep_local: bool = True,  # noqa: FBT001, FBT002
        file_client_args: dict[str, Any] | None = None,
        log_metric_by_epoch: bool = True,  # noqa: FBT001, FBT002
        backend_args: dict[str, Any] | None = None,
    ) -> None:
        check_integer("LoggerHook.interval", interval, least=1)
        for name, value in (("file_client_args", file_client_args), ("backend_args", backend_args)):
            if value is not None:
                raise ConfigError(
                    f"LoggerHook.{name}: {value!r} was given; files are written through the file "
                    "system only. Mount the storage, and give its path as out_dir."
                )
        if not keep_local and out_dir is None:
            raise ConfigError(
                "LoggerHook.keep_local: False was given without out_dir; the logs would be lost."
            )
        self.interval = interval
        self.ignore_last = ignore_last
        self.interval_exp_name = interval_exp_name
        self.out_dir = None if out_dir is None else Path(out_dir)
        self.out_suffix = (out_suffix,) if isinstance(out_suffix, str) else tuple(out_suffix)
        self.keep_local = keep_local
        self.log_metric_by_epoch = log_metric_by_epoch
        self._clock = TrainingClock()
        self._by_epoch = True
        self._epoch_length = self._num_steps = 0
        # What every step asks, found out once.
        self._has_bar = False
        self._last_line: int | None = None
        self._evaluation_clock = TrainingClock()
        self._evaluation_length = 0  # none is under way
        self._not_finite: set[str] = set()  # what was warned of

    @override
    def before_train(self, runner: RunView) -> None:
        self._by_epoch = getattr(runner.train_loop, "by_epoch", True)
        self._clock = TrainingClock(runner.iter)
        self._num_steps = runner.iter
        runner.console.start_progress("training", runner.max_iters, runner.iter)
        self._has_bar = runner.console.has_bar
        self._not_finite.clear()
        self._evaluation_length = 0
        self._last_line = self._step_of_last_line(runner.max_iters)

    @override
    def before_train_epoch(self, runner: RunView) -> None:
        if self._by_epoch:
            # A loader counts its batches anew whenever it is asked: too dear for every step.
            self._epoch_length = len(runner.train_dataloader)
            self._last_line = self._step_of_last_line(self._epoch_length)
            epoch = f"epoch {runner.epoch + 1}/{runner.max_epochs}"
            runner.console.update_progress(runner.iter, description=epoch)

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        step = batch_idx + 1
        self._num_steps += 1
        if self._has_bar:
            runner.console.update_progress(runner.iter + 1, clock=self._clock)
        if self.interval_exp_name > 0 and self._num_steps % self.interval_exp_name == 0:
            runner.logger.info(f"Experiment {runner.experiment_name}")
        if step % self.interval == 0 or step == self._last_line:
            self._log_training(runner, step, data_batch)

    @override
    def after_train(self, runner: RunView) -> None:
        runner.console.update_progress(runner.iter, values="")
        runner.console.stop_progress()

    @override
    def before_val(self, runner: RunView) -> None:
        self._clock.pause()

    @override
    def after_val(self, runner: RunView) -> None:
        self._clock.go_on()

    @override
    def before_val_epoch(self, runner: RunView) -> None:
        self._begin_evaluation(runner, "validation", runner.val_dataloader, runner.val_loop)

    @override
    def before_test_epoch(self, runner: RunView) -> None:
        self._begin_evaluation(runner, "test", runner.test_dataloader, runner.test_loop)

    @override
    def _after_iter(
        self,
        runner: RunView,
        batch_idx: int,
        data_batch: Any = None,
        outputs: Any = None,
        mode: str = "train",
    ) -> None:
        self._log_evaluation(runner, mode, batch_idx + 1)

    @override
    def after_val_epoch(self, runner: RunView, metrics: dict[str, float] | None = None) -> None:
        self._log_metrics(runner, "val", len(runner.val_dataloader), metrics or {})

    @override
    def after_test_epoch(self, runner: RunView, metrics: dict[str, float] | None = None) -> None:
        self._log_metrics(runner, "test", len(runner.test_dataloader), metrics or {})

    @override
    def after_run(self, runner: RunView) -> None:
        if self.out_dir is not None and mm_dist.is_main_process():
            self._copy(runner, self.out_dir)

    def _step_of_last_line(self, steps: int) -> int | None:
        """Return the step at the end of ``steps`` that has a line, whatever the interval."""
        # What is shorter than the interval would otherwise never show up.
        return steps if not self.ignore_last or steps < self.interval else None

    def _log_training(self, runner: RunView, step: int, data_batch: Any) -> None:
        scalars = learning_rates(runner.optim_wrapper)
        scalars.update(mean_over_ranks(runner.message_hub.means("train")))
        # A scale of float16 that is too large is reported where it is adapted.
        not_finite = [n for n in runner.message_hub.not_finite if not n.endswith("grad_norm")]
        steps = self._epoch_length if self._by_epoch else runner.max_iters
        epoch = f"[{runner.epoch + 1}]" if self._by_epoch else ""
        position = f"{epoch}[{step:>{len(str(steps))}}/{steps}]"
        done = runner.iter + 1
        eta_s = self._clock.eta_s(done, runner.max_iters)
        line = runner.log_processor.line(
            "train", position, scalars, eta_s=eta_s, by_epoch=self._by_epoch
        )
        runner.logger.info(line)
        self._warn_not_finite(
            runner,
            not_finite,
            f"in any of the newest steps, up to step {done}. The weights may be lost: lower the "
            "learning rate or clip gradients, and go back to an earlier checkpoint. "
            "CheckInvalidLossHook ends such a run",
        )
        if runner.console.has_bar:
            values = self._bar_values(runner, scalars, data_batch)
            runner.console.update_progress(done, values=values, clock=self._clock)
        runner.write_scalars("train", scalars, step=done)

    def _begin_evaluation(self, runner: RunView, description: str, loader: Any, loop: Any) -> None:
        self._end_evaluation(runner)  # one that was left
        length, limit = len(loader), getattr(loop, "limit", None)
        self._evaluation_length = length if limit is None else min(length, limit)
        self._evaluation_clock = TrainingClock()
        runner.console.start_progress(description, self._evaluation_length)

    def _end_evaluation(self, runner: RunView) -> None:
        if self._evaluation_length:
            self._evaluation_length = 0
            runner.console.end_task()

    def _log_evaluation(self, runner: RunView, phase: str, done: int) -> None:
        if not self._evaluation_length:  # a loop of the user's own, which began none
            return
        steps = self._evaluation_length
        text = "" if done >= steps else None  # a new text is drawn at once
        runner.console.update_progress(done, values=text, clock=self._evaluation_clock)
        if done % self.interval or done >= steps:  # the last line has the metrics
            return
        position = f"[{self._moment(runner)}][{done:>{len(str(steps))}}/{steps}]"
        times = runner.message_hub.means(phase)
        eta_s = self._evaluation_clock.eta_s(done, steps)
        line = runner.log_processor.line(
            phase, position, times, eta_s=eta_s, by_epoch=self._by_epoch
        )
        runner.logger.info(line)

    def _moment(self, runner: RunView) -> int:
        return int(runner.epoch if self._by_epoch else runner.iter)

    def _warn_not_finite(self, runner: RunView, names: Sequence[str], text: str) -> None:
        new = [name for name in names if name not in self._not_finite]
        self._not_finite.update(new)
        if new:
            has = "has" if len(new) == 1 else "have"
            runner.logger.warning(f"{', '.join(new)} {has} not been finite {text}.")

    def _bar_values(self, runner: RunView, scalars: dict[str, float], data_batch: Any) -> str:
        losses = [f"{name} {value:.4f}" for name, value in scalars.items() if "loss" in name]
        step_s = scalars.get("time") or self._clock.step_s(runner.iter + 1)
        samples = count_samples(data_batch) * runner.world_size
        return "  ".join([*losses, f"{samples / max(step_s, 1e-9):,.0f} samples/s"])

    def _log_metrics(
        self, runner: RunView, phase: str, steps: int, metrics: dict[str, float]
    ) -> None:
        # A metric may be a table or text: lines and files show numbers.
        found = {name: as_number(value) for name, value in metrics.items()}
        numbers = {name: value for name, value in found.items() if value is not None}
        times = runner.message_hub.means(phase)
        runner.message_hub.clear(phase)
        self._end_evaluation(runner)
        position = f"[{self._moment(runner)}][{steps}/{steps}]"
        line = runner.log_processor.line(
            phase, position, {**times, **numbers}, by_epoch=self._by_epoch
        )
        runner.logger.info(line)
        names = [f"{phase}/{name}" for name, one in numbers.items() if not math.isfinite(one)]
        self._warn_not_finite(runner, names, f"after step {runner.iter}")
        by_epoch = phase == "val" and self._by_epoch and self.log_metric_by_epoch
        runner.write_scalars(phase, {**numbers, **times}, step=runner.iter, by_epoch=by_epoch)

    def _copy(self, runner: RunView, out_dir: Path) -> None:
        target = out_dir / Path(runner.work_dir).resolve().name / Path(runner.log_dir).name
        try:
            target.mkdir(parents=True, exist_ok=True)
            for path in sorted(Path(runner.log_dir).iterdir()):
                if path.is_file() and path.name.endswith(self.out_suffix):
                    shutil.copy2(path, target / path.name)
                    if not self.keep_local:
                        path.unlink()
        except OSError as error:  # training is done; its logs are still where they were written
            runner.logger.warning(f"LoggerHook.out_dir: the logs could not be copied: {error}")
            return
        runner.logger.info(f"The logs are in {target}.")


def count_samples(batch: Any) -> int:
    """Return the number of samples in a batch, by its first entry.

    That entry is a tensor of all samples, or a list of one thing per sample; a list of dicts is a
    list of samples itself.

    Example:
        >>> count_samples({"inputs": torch.ones(8, 3), "labels": torch.ones(8)})
        8
    """
    first = batch
    if isinstance(batch, Mapping):
        first = next(iter(batch.values()), None)
    elif isinstance(batch, (tuple, list)) and batch:
        first = batch[0]
    if isinstance(first, Tensor):
        return len(first) if first.ndim else 1
    if isinstance(first, (tuple, list)):
        return len(first)
    return len(batch) if isinstance(batch, (tuple, list)) else 1
