"""The last lines of a training's log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

from typing_extensions import override

from mm_runner.evaluator import as_number
from mm_runner.hooks import CheckpointHook, Hook
from mm_runner.hooks._iter_timer import feed_of_training
from mm_runner.optim import named_wrappers

from ._summary import aligned, batch_of_process, checkpoint_places

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

    from ._runner import Runner

__all__ = ["RunReceipt"]


class RunReceipt(Hook):
    """Times a training, and logs the result at the end.

    Attributes:
        has_ended: Whether the training has come to ``after_train``, and all hooks before this.
    """

    priority = "VERY_LOW"

    def __init__(self) -> None:
        self.has_ended = False
        self._newest: dict[str, float] = {}
        self._started_s = self._evaluated_s = self._left_s = 0.0
        self._first_iter = 0

    @override
    def before_train(self, runner: RunView) -> None:
        self._started_s, self._evaluated_s = time.perf_counter(), 0.0
        self._first_iter = runner.iter

    @override
    def after_train(self, runner: RunView) -> None:
        self.has_ended = True

    @override
    def before_val(self, runner: RunView) -> None:
        self._left_s = time.perf_counter()

    @override
    def after_val_epoch(self, runner: RunView, metrics: dict[str, float] | None = None) -> None:
        # A metric may be a table or text.
        found = {name: as_number(value) for name, value in (metrics or {}).items()}
        self._newest = {name: value for name, value in found.items() if value is not None}

    @override
    def after_val(self, runner: RunView) -> None:
        self._evaluated_s += time.perf_counter() - self._left_s

    def log(self, runner: Runner) -> None:
        """Log the summary of the training; on the main process."""
        spent = time.perf_counter() - self._started_s
        steps = runner.iter - self._first_iter
        title = f"Trained {runner.model_name}: {steps:,} steps in {_clock(spent)}"
        runner.logger.info(aligned(title, self._lines(runner, steps, spent)))

    def _lines(self, runner: Runner, steps: int, spent: float) -> Iterator[tuple[str, str]]:
        training_s = max(spent - self._evaluated_s, 1e-9)
        if runner.interruption.ran_out_of_time:
            yield "ended", f"the time was up, {runner.max_iters - runner.iter:,} steps are left"
        if steps > 0:
            size = batch_of_process(runner.train_dataloader)
            rate = steps * runner.world_size * (size or 0) / training_s
            samples = "" if size is None else f"{rate:,.1f} samples/s, "
            yield "speed", f"{samples}{1000 * training_s / steps:.3g} ms per step"
        feed = feed_of_training(runner)
        if feed is not None:
            yield "data", f"{feed.waited_s / training_s:.0%} of it waiting for data"
        if self._evaluated_s:
            yield "validation", _clock(self._evaluated_s)
        yield from self._scores(runner)
        for name, wrapper in named_wrappers(runner.optim_wrapper).items():
            if wrapper.num_skipped:
                of_name = f" of {name}" if name else ""
                yield "skipped", f"{wrapper.num_skipped:,} steps{of_name}, gradients not finite"
        times = runner.compile_handle.report().steps if runner.compile_handle.enabled else None
        if times is not None:
            yield "compile", str(times)
        yield "checkpoints", checkpoint_places(runner)
        yield "logs", str(runner.log_dir)

    def _scores(self, runner: Runner) -> Iterator[tuple[str, str]]:
        hooks = [hook for hook in runner.hooks if isinstance(hook, CheckpointHook)]
        best = {name: record for hook in hooks for name, record in hook.best_records.items()}
        for name, record in best.items():
            where = f"epoch {record['epoch']}, step {record['iter']}"
            yield "best", f"{name} {_number(record['score'])} after {where}: {record['file']}"
        if self._newest and not best:
            numbers = ", ".join(f"{name} {_number(value)}" for name, value in self._newest.items())
            yield "metrics", f"{numbers}, in the newest validation"


def _number(value: float) -> str:
    """Return a number in four digits, or in full if it has more before the point."""
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds))) if seconds >= 10 else f"{seconds:.2f} s"
