"""What a training was, as the last lines of its log; and a word if it waits for its data."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from mm_runner._disk import is_gone
from mm_runner.evaluator import as_number
from mm_runner.hooks import CheckpointHook, Hook, LoggerHook
from mm_runner.hooks._iter_timer import train_feed_of
from mm_runner.optim import named_wrappers

from ._summary import aligned, batch_of_process, checkpoint_places

if TYPE_CHECKING:
    from mm_runner.data import BatchFeed
    from mm_runner.run_view import RunView
    from mm_runner.runner import Runner

__all__ = ["RunReceipt"]

# Of a step: from here on it pays to look at the data.
_WAITS_TOO_LONG = 0.3
_DEFAULT_WINDOW = 50
# Numbers of more than four digits before the point are written in full, but for the largest.
_LONG, _TOO_LONG = 1e4, 1e15


class RunReceipt(Hook):
    """Times a training, says once if it waits for its data, and sums it up at the end.

    The Runner adds it to every training; it keeps a few numbers, however long that is.

    Attributes:
        has_ended: Whether the training has come to ``after_train``, and all hooks before this.
    """

    priority = "VERY_LOW"

    def __init__(self) -> None:
        self._started_s = self._evaluated_s = self._left_s = 0.0
        self._first_iter = 0
        self.has_ended = False
        self._newest: dict[str, float] = {}
        self._watch: _DataWatch | None = None

    @override
    def before_run(self, runner: RunView) -> None:
        self.has_ended = False

    @override
    def after_train(self, runner: RunView) -> None:
        self.has_ended = True

    @override
    def before_train(self, runner: RunView) -> None:
        self._started_s, self._evaluated_s = time.perf_counter(), 0.0
        self._first_iter = runner.iter
        feed = train_feed_of(runner)
        self._watch = None if feed is None or runner.rank else _DataWatch(runner, feed)

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
        if self._watch is not None:
            self._watch.leave_out(spent)

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        watch = self._watch
        if watch is not None and watch.after_step():
            self._watch = None

    def log(self, runner: Runner) -> None:
        """Log what the training was; on the main process."""
        spent = time.perf_counter() - self._started_s
        steps = runner.iter - self._first_iter
        name = runner.model_name
        title = f"Trained {name}: {steps:,} steps in {_clock(spent)}"
        runner.logger.info(aligned(title, self._lines(runner, steps, spent)))

    def _lines(self, runner: Runner, steps: int, spent: float) -> Iterator[tuple[str, str]]:
        training_s = max(spent - self._evaluated_s, 1e-9)
        if runner.interruption.ran_out_of_time:
            yield "ended", f"the time was up, {runner.max_iters - runner.iter:,} steps are left"
        if steps > 0:
            yield "speed", _speed(runner, self._first_iter, steps, training_s)
        feed = train_feed_of(runner)
        if feed is not None:
            yield (
                "data",
                f"{(feed.loaded_s + feed.copied_s) / training_s:.0%} of it waiting for data",
            )
        if self._evaluated_s:
            yield "validation", _clock(self._evaluated_s)
        yield from _scores(runner, self._newest)
        for name, wrapper in named_wrappers(runner.optim_wrapper).items():
            if wrapper.num_skipped:
                of_whom = f" of {name}" if name else ""
                yield "skipped", f"{wrapper.num_skipped:,} steps{of_whom}, gradients not finite"
        times = runner.compile_handle.report().steps if runner.compile_handle.enabled else None
        if times is not None:
            yield "compile", str(times)
        yield "checkpoints", checkpoint_places(runner)
        yield "logs", str(runner.log_dir)


class _DataWatch:
    """Looks, once per window of steps, at how much of it was spent waiting for data."""

    def __init__(self, runner: RunView, feed: BatchFeed) -> None:
        intervals = [hook.interval for hook in runner.hooks if isinstance(hook, LoggerHook)]
        self._runner, self._feed = runner, feed
        self._window = intervals[0] if intervals else _DEFAULT_WINDOW
        self._steps = 0
        self._is_first = True  # workers start, kernels are compiled: not what the rest is like
        self._begin()

    def leave_out(self, seconds: float) -> None:
        """Do not count a validation."""
        self._began_s += seconds

    def after_step(self) -> bool:
        """Count a step; return whether the warning was given, which is given once."""
        self._steps += 1
        if self._steps % self._window:
            return False
        elapsed = time.perf_counter() - self._began_s
        loaded = self._feed.loaded_s - self._loaded_s
        copied = self._feed.copied_s - self._copied_s
        is_slow = loaded + copied > _WAITS_TOO_LONG * elapsed and not self._is_first
        self._is_first = False
        self._begin()
        if is_slow:
            share = (loaded + copied) / elapsed
            reason = _about_copying() if copied > loaded else _about_loading(self._runner)
            self._runner.logger.warning(
                f"{share:.0%} of the last {self._window} steps' time was spent waiting for data: "
                f"{reason}"
            )
        return is_slow

    def _begin(self) -> None:
        self._began_s = time.perf_counter()
        self._loaded_s, self._copied_s = self._feed.loaded_s, self._feed.copied_s


def _about_loading(runner: RunView) -> str:
    workers = getattr(runner.train_dataloader, "num_workers", 0)
    if not workers:
        return (
            "samples are loaded and collated in the training process. Set "
            "train_dataloader.num_workers to 2 or more, so that others do it meanwhile."
        )
    return (
        f"all {workers} workers are busy loading and collating samples. Raise "
        f"train_dataloader.num_workers (this machine has {os.cpu_count()} cores), store the "
        "samples in a form that is cheaper to read, or move augmentation to the device."
    )


def _about_copying() -> str:
    return (
        "pinning batches and copying them to the device takes longer than loading them. Leave "
        "train_dataloader.pin_memory at True, with workers; let samples be smaller types (uint8 "
        "images, converted on the device)."
    )


def _speed(runner: Runner, first_iter: int, steps: int, seconds: float) -> str:
    per_step = f"{1000 * seconds / steps:.3g} ms per step"
    samples = _num_samples(runner, first_iter, steps)
    return per_step if samples is None else f"{samples / seconds:,.1f} samples/s, {per_step}"


def _num_samples(runner: Runner, first_iter: int, steps: int) -> int | None:
    """Return how many samples all ranks have trained on; the last batch of an epoch may be short.

    Reckoned at the end: to count them would cost every step.
    """
    loader: Any = runner.train_dataloader
    size = batch_of_process(loader)
    if size is None:
        return None
    samples = steps * size
    if runner.max_epochs > 1 and hasattr(loader.sampler, "__len__") and len(loader):
        num_short = (first_iter + steps) // len(loader) - first_iter // len(loader)
        samples -= num_short * max(len(loader) * size - len(loader.sampler), 0)
    return samples * runner.world_size


def _scores(runner: Runner, newest: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    best = {
        name: (record, hook.directory(runner) / record["file"])
        for hook in runner.hooks
        if isinstance(hook, CheckpointHook)
        for name, record in hook.best_records.items()
    }
    for name, (record, path) in best.items():
        where = f"epoch {record['epoch']}, step {record['iter']}"
        file = f"{path.name}, which is gone" if is_gone(path) else path.name
        yield "best", f"{name} {_number(record['score'])} after {where}: {file}"
    if newest and not best:
        numbers = ", ".join(f"{name} {_number(value)}" for name, value in newest.items())
        yield "metrics", f"{numbers}, in the newest validation"


def _number(value: float) -> str:
    is_long = _LONG <= abs(value) < _TOO_LONG
    return f"{value:,.0f}" if is_long else f"{value:.4g}"


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds))) if seconds >= 10 else f"{seconds:.2f} s"
