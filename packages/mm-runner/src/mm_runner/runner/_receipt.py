"""The last lines of a training's log, and a warning if it waits for its data."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from mm_runner.evaluator import as_number
from mm_runner.hooks import CheckpointHook, Hook
from mm_runner.optim import named_wrappers

from ._summary import aligned, batch_of_process, checkpoint_places

if TYPE_CHECKING:
    from mm_runner.data import BatchFeed
    from mm_runner.run_view import RunView

    from ._runner import Runner

__all__ = ["RunReceipt"]

# The share of the time of a window of steps that is worth a warning.
_WAITS_TOO_LONG, _WINDOW = 0.3, 50


class RunReceipt(Hook):
    """Times a training, warns once if it waits for its data, and logs the result at the end.

    Attributes:
        has_ended: Whether the training has come to ``after_train``, and all hooks before this.
    """

    priority = "VERY_LOW"

    def __init__(self) -> None:
        self.has_ended = False
        self._newest: dict[str, float] = {}
        self._started_s = self._evaluated_s = self._left_s = 0.0
        self._first_iter = 0
        self._feed: BatchFeed | None = None
        self._window_s = self._waited_s = 0.0  # where the window began
        self._has_warned = False

    @override
    def before_train(self, runner: RunView) -> None:
        self._started_s, self._evaluated_s = time.perf_counter(), 0.0
        self._first_iter = runner.iter
        self._feed = getattr(getattr(runner.train_loop, "batches", None), "feed", None)
        self._begin_window()

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
        spent = time.perf_counter() - self._left_s
        self._evaluated_s += spent
        self._window_s += spent

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        steps = runner.iter + 1 - self._first_iter
        if steps % _WINDOW or self._has_warned or self._feed is None:
            return
        share = (self._total_wait() - self._waited_s) / (time.perf_counter() - self._window_s)
        # In the first window workers start and kernels are compiled.
        if share > _WAITS_TOO_LONG and steps > _WINDOW and runner.rank == 0:
            self._has_warned = True
            workers = getattr(runner.train_dataloader, "num_workers", 0)
            runner.logger.warning(
                f"{share:.0%} of the last {_WINDOW} steps' time was spent waiting for data. Raise "
                f"train_dataloader.num_workers, which is {workers} (this machine has "
                f"{os.cpu_count()} cores), store samples in a form that is cheaper to read, or "
                "move augmentation to the device."
            )
        self._begin_window()

    def log(self, runner: Runner) -> None:
        """Log the summary of the training; on the main process."""
        spent = time.perf_counter() - self._started_s
        steps = runner.iter - self._first_iter
        title = f"Trained {runner.model_name}: {steps:,} steps in {_clock(spent)}"
        runner.logger.info(aligned(title, self._lines(runner, steps, spent)))

    def _begin_window(self) -> None:
        self._window_s, self._waited_s = time.perf_counter(), self._total_wait()

    def _total_wait(self) -> float:
        return self._feed.loaded_s + self._feed.copied_s if self._feed is not None else 0.0

    def _lines(self, runner: Runner, steps: int, spent: float) -> Iterator[tuple[str, str]]:
        training_s = max(spent - self._evaluated_s, 1e-9)
        if runner.interruption.ran_out_of_time:
            yield "ended", f"the time was up, {runner.max_iters - runner.iter:,} steps are left"
        if steps > 0:
            size = batch_of_process(runner.train_dataloader)
            rate = steps * runner.world_size * (size or 0) / training_s
            samples = "" if size is None else f"{rate:,.1f} samples/s, "
            yield "speed", f"{samples}{1000 * training_s / steps:.3g} ms per step"
        if self._feed is not None:
            yield "data", f"{self._total_wait() / training_s:.0%} of it waiting for data"
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
