"""Log lines, the progress bar, and the file of scalars."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from typing_extensions import override

import mm_dist
from mm_runner.evaluator import as_number
from mm_runner.registry import check_integer

from ._default_hooks import learning_rates
from ._hook import Hook

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mm_runner.run_view import RunView


class LoggerHook(Hook):
    """Log a line per interval, in validations and tests too, and move the progress bar.

    A number in a training line is the mean over the newest steps (``log_processor.window_size`` of
    them) and over all processes. The hook warns once of a number that was finite in none of
    these.

    Args:
        interval: Steps between two lines, of training or of an evaluation.
        ignore_last: Write no line for the steps after the last full interval of an epoch, or of a
            run by iterations.
        interval_exp_name: Training steps between two lines that name the experiment; ``-1`` for
            none. Defaults to 1000.
        log_metric_by_epoch: Whether TensorBoard draws the metrics of a validation by epoch (the
            default) or by training step. Where training counts steps it always draws by step, and
            ``scalars.jsonl`` always has both.

    Raises:
        ConfigError: If ``interval`` is not a positive integer.
    """

    priority = "BELOW_NORMAL"

    def __init__(
        self,
        interval: int = 10,
        ignore_last: bool = True,  # noqa: FBT001, FBT002 - MMEngine's signature
        interval_exp_name: int = 1000,
        *,
        log_metric_by_epoch: bool = True,
    ) -> None:
        check_integer("LoggerHook.interval", interval, least=1)
        self.interval, self.ignore_last = interval, ignore_last
        self.interval_exp_name = interval_exp_name
        self.log_metric_by_epoch = log_metric_by_epoch
        self._by_epoch = True
        self._length = self._num_steps = 0
        self._evaluation_length = 0  # none is under way
        self._warned: set[str] = set()  # names of scalars

    @override
    def before_train(self, runner: RunView) -> None:
        self._by_epoch = getattr(runner.train_loop, "by_epoch", True)
        self._length, self._num_steps, self._evaluation_length = runner.max_iters, runner.iter, 0
        self._warned = set()
        runner.console.start_progress("training", runner.max_iters, runner.iter)

    @override
    def before_train_epoch(self, runner: RunView) -> None:
        if self._by_epoch:
            # len() of a loader is computed on every call: too slow for every step.
            self._length = len(runner.train_dataloader)
            epoch = f"epoch {runner.epoch + 1}/{runner.max_epochs}"
            runner.console.update_progress(runner.iter, description=epoch)

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        step = batch_idx + 1
        self._num_steps += 1
        runner.console.update_progress(self._num_steps)
        if self.interval_exp_name > 0 and self._num_steps % self.interval_exp_name == 0:
            runner.logger.info(f"Experiment {runner.experiment_name}")
        # What is shorter than the interval would otherwise never show up.
        is_last = step == self._length and (not self.ignore_last or step < self.interval)
        if is_last or step % self.interval == 0:
            self._log_training(runner, step)

    @override
    def after_train(self, runner: RunView) -> None:
        runner.console.update_progress(runner.iter, values="")
        runner.console.stop_progress()

    @override
    def before_val_epoch(self, runner: RunView) -> None:
        self._begin_evaluation(runner, "validation", runner.val_loop)

    @override
    def before_test_epoch(self, runner: RunView) -> None:
        self._begin_evaluation(runner, "test", runner.test_loop)

    @override
    def _after_iter(self, runner: RunView, batch_idx: int, *batch: Any, **more: Any) -> None:
        done, steps, mode = batch_idx + 1, self._evaluation_length, more["mode"]
        if not steps:  # a custom loop without before_val_epoch
            return
        # A new text is drawn at once.
        runner.console.update_progress(done, values="" if done >= steps else None)
        if done % self.interval == 0 and done < steps:  # the last line has the metrics
            times = runner.message_hub.means(mode)
            self._log_line(runner, mode, (done, steps), times, steps - done)

    @override
    def after_val_epoch(self, runner: RunView, metrics: dict[str, float] | None = None) -> None:
        self._log_metrics(runner, "val", len(runner.val_dataloader), metrics or {})

    @override
    def after_test_epoch(self, runner: RunView, metrics: dict[str, float] | None = None) -> None:
        self._log_metrics(runner, "test", len(runner.test_dataloader), metrics or {})

    def _log_training(self, runner: RunView, step: int) -> None:
        scalars = learning_rates(runner.optim_wrapper)
        scalars.update(mean_over_ranks(runner.message_hub.means("train")))
        done = runner.iter + 1
        self._log_line(runner, "train", (step, self._length), scalars, runner.max_iters - done)
        # A scale of float16 that is too large is reported where it is adapted.
        not_finite = [n for n in runner.message_hub.not_finite if not n.endswith("grad_norm")]
        self._warn_once(
            runner,
            not_finite,
            f"not been finite in any of the newest steps, up to step {done}. The weights may be "
            "lost: lower the learning rate or clip gradients, and go back to an earlier "
            "checkpoint. CheckInvalidLossHook ends such a run.",
        )
        losses = [f"{name} {value:.4f}" for name, value in scalars.items() if "loss" in name]
        runner.console.update_progress(done, values="  ".join(losses))
        runner.write_scalars("train", scalars, step=done)

    def _begin_evaluation(self, runner: RunView, description: str, loop: Any) -> None:
        self._end_evaluation(runner)  # one that was left
        length, limit = len(loop.dataloader), getattr(loop, "limit", None)
        self._evaluation_length = length if limit is None else min(length, limit)
        runner.console.start_progress(description, self._evaluation_length)

    def _end_evaluation(self, runner: RunView) -> None:
        if self._evaluation_length:
            self._evaluation_length = 0
            runner.console.end_task()

    def _log_metrics(
        self, runner: RunView, phase: str, steps: int, metrics: dict[str, float]
    ) -> None:
        # A metric may be a table or text: lines and files show numbers.
        found = {name: as_number(value) for name, value in metrics.items()}
        numbers = {name: value for name, value in found.items() if value is not None}
        times = runner.message_hub.means(phase)
        runner.message_hub.clear(phase)
        self._end_evaluation(runner)
        self._log_line(runner, phase, (steps, steps), {**times, **numbers})
        names = [f"{phase}/{name}" for name, one in numbers.items() if not math.isfinite(one)]
        self._warn_once(runner, names, f"not been finite after step {runner.iter}.")
        by_epoch = phase == "val" and self._by_epoch and self.log_metric_by_epoch
        runner.write_scalars(phase, {**numbers, **times}, step=runner.iter, by_epoch=by_epoch)

    def _log_line(
        self,
        runner: RunView,
        phase: str,
        step: tuple[int, int],
        scalars: Mapping[str, float],
        steps_left: int | None = None,
    ) -> None:
        moment = f"[{runner.epoch if self._by_epoch else runner.iter}]"
        if phase == "train":
            moment = f"[{runner.epoch + 1}]" if self._by_epoch else ""
        position = f"{moment}[{step[0]:>{len(str(step[1]))}}/{step[1]}]"
        is_timed = steps_left is not None and "time" in scalars
        eta_s = max(steps_left or 0, 0) * scalars["time"] if is_timed else None
        line = runner.log_processor.line(
            phase, position, scalars, eta_s=eta_s, by_epoch=self._by_epoch
        )
        runner.logger.info(line)

    def _warn_once(self, runner: RunView, names: list[str], text: str) -> None:
        new = [name for name in names if name not in self._warned]
        self._warned.update(new)
        if new:
            has = "has" if len(new) == 1 else "have"
            runner.logger.warning(f"{', '.join(new)} {has} {text}")


def mean_over_ranks(scalars: dict[str, float]) -> dict[str, float]:
    """Return the mean of each scalar over the processes that have it; all must call this."""
    if mm_dist.get_world_size() == 1:
        return scalars
    gathered = mm_dist.all_gather_object(scalars)
    names = dict.fromkeys(name for one in gathered for name in one)
    found = {name: [one[name] for one in gathered if name in one] for name in names}
    return {name: sum(values) / len(values) for name, values in found.items()}
