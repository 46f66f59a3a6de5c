"""The largest batch that a training step survives, and the smallest that is as fast as any."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils.data import DataLoader
from typing_extensions import override

from mm_runner._error_text import text_of
from mm_runner.data import DataSettings, build_dataloader
from mm_runner.errors import ConfigError
from mm_runner.hooks import EMAHook, Hook
from mm_runner.optim import named_wrappers

from ._first_samples import KeptSamples
from ._memory import free_memory, is_out_of_memory, peak_bytes, start_counting, wait_for
from ._trial_run import EndOfTrialError, begin_trials, run_trial, trial_config, trial_directory

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

__all__ = ["BatchSizeReport", "BatchTrial", "find_batch_size"]

# Of the best throughput: what is as good as it.
_AS_FAST = 0.95
_LEAST_STEPS = 2
_PINNING = ("pin_memory", "pin_memory_device")
_WHAT = "find-batch-size"
# What batch normalisation says of a batch of one, if there is one value per channel.
_TOO_SMALL = "more than 1 value per channel"


class BatchTrial(NamedTuple):
    """Some training steps with a batch of ``size``, or the attempt.

    ``samples_per_s`` counts from the second step on; ``peak_bytes`` is the most memory that was
    used at a time (on the CPU by this process so far). Both are ``None`` where it did not fit, the
    latter also where nobody knows.
    """

    size: int
    fits: bool
    samples_per_s: float | None = None
    peak_bytes: int | None = None


class BatchSizeReport(NamedTuple):
    """What was found.

    ``largest`` is the largest batch that fits, 0 if none does; ``limit`` says what it is limited
    by: the memory only if a batch was too large for it. ``power_of_two`` is the largest power of
    two that is not larger. ``fastest`` is the smallest batch within 5 % of the best throughput.
    """

    largest: int
    power_of_two: int
    fastest: int
    limit: str
    trials: tuple[BatchTrial, ...]
    notes: tuple[str, ...]


def find_batch_size(
    cfg: Mapping[str, Any],
    *,
    start: int = 2,
    maximum: int = 1024,
    steps: int = 5,
    tell: Callable[[BatchTrial], None] = lambda _: None,
) -> BatchSizeReport:
    """Train some steps with larger and larger batches, until the memory is full.

    The batch is doubled until it does not fit, and the range in between bisected. Each trial has a
    new model and optimizer (and its average, with :class:`mm_runner.hooks.EMAHook`), and the
    device's memory to itself. The user's own hooks run along, and clean up, but get no
    ``after_train`` and ``after_run``. The first samples of the dataset
    are read once, and make all batches: where samples differ in size, leave room. All takes place
    in one process, whatever started it.

    Args:
        cfg: A full configuration, as for ``Runner.from_cfg``. It is copied, but for the dataset.
        start: The first batch.
        maximum: The largest batch that is tried; a dataset with fewer samples limits it further.
        steps: Of the optimizer, in each trial; with accumulation, each takes several batches.
        tell: Is called with each trial as it ends.

    Raises:
        ConfigError: If the configuration or an argument does not fit.
        Exception: What a step raises besides errors of memory.

    Example:
        >>> find_batch_size(cfg, maximum=64).largest  # doctest: +SKIP
        48
    """
    if not 0 < start <= maximum:
        raise ConfigError(
            f"{_WHAT}: batches from {start} to {maximum} were asked for; 0 < start <= max is "
            "needed."
        )
    if steps < _LEAST_STEPS:
        raise ConfigError(
            f"{_WHAT}: steps={steps} was given; {_LEAST_STEPS} are needed at least, of which the "
            "first does not count."
        )
    cfg = {**cfg, "launcher": "none"}
    device = begin_trials(cfg, _WHAT)
    with trial_directory(_WHAT, device) as directory:
        bench = _Bench(cfg, directory, steps, tell)
        bench.search(start, maximum)
    return _report(bench, maximum, [*bench.notes, *_notes(cfg)])


class _Bench:
    """Tries batches of a configuration; the dataset is built once, as it may be large."""

    def __init__(
        self,
        cfg: Mapping[str, Any],
        directory: Path,
        steps: int,
        tell: Callable[[BatchTrial], None],
    ) -> None:
        loader = _loader(cfg)
        self._samples = KeptSamples(loader.dataset)
        self._rest = {**cfg, "train_dataloader": None}
        self._directory, self._steps, self._tell = directory, steps, tell
        given = cfg["train_dataloader"]
        options = given if isinstance(given, Mapping) else {}
        pinning = {name: options[name] for name in _PINNING if name in options}
        self._loading = {"collate_fn": loader.collate_fn, "num_workers": 0, **pinning}
        self.trials: list[BatchTrial] = []
        self.notes: list[str] = []
        self._too_small = 0
        self.fits, self.num_samples = 0, -1  # of the dataset, if it was gone through

    def search(self, size: int, maximum: int) -> None:
        """Double ``size`` until it does not fit, and bisect from there."""
        while self.fits < maximum:
            found = self._samples.grow_to(min(size, maximum))
            if not found:
                raise ConfigError(f"train_dataloader.dataset: it has no samples for {_WHAT}.")
            if found < min(size, maximum):
                maximum = self.num_samples = found
            if found <= self._not_too_large:
                return
            if not self._try(found):
                break
            size = 2 * found
        else:
            return
        too_large = found
        while too_large - self._not_too_large > 1:
            size = (self._not_too_large + too_large) // 2
            self._samples.grow_to(size)
            if not self._try(size):
                too_large = size

    @property
    def _not_too_large(self) -> int:
        """The largest batch so far that is not too large."""
        return max(self.fits, self._too_small)

    def _try(self, size: int) -> bool:
        """Return whether ``size`` is not too large."""
        loader = {**self._loading, "dataset": self._samples, "batch_size": size, "shuffle": False}
        cfg = {
            # The average takes memory too.
            **trial_config(self._rest, self._directory, _WHAT, keep=(EMAHook,)),
            "load_from": None,  # what the weights are does not matter
            "train_cfg": {"by_epoch": False, "max_iters": 2**31},
            "train_dataloader": loader,
        }
        trial = _attempt(cfg, size, self._steps)
        if isinstance(trial, str):
            self._too_small = size
            self.notes.append(f"A batch of 1 cannot be trained: {trial}")
            return True
        self.trials.append(trial)
        self._tell(trial)
        if trial.fits:
            self.fits = size
        return trial.fits


def _report(bench: _Bench, maximum: int, notes: list[str]) -> BatchSizeReport:
    speeds = {one.size: one.samples_per_s for one in bench.trials if one.samples_per_s is not None}
    best = max(speeds.values(), default=0.0)
    limit = f"--max {maximum}"
    if any(not one.fits for one in bench.trials):
        limit = "the memory"
    elif bench.num_samples >= 0:
        plural = "" if bench.num_samples == 1 else "s"
        limit = f"the dataset, which has {bench.num_samples} sample{plural}"
    return BatchSizeReport(
        largest=bench.fits,
        power_of_two=1 << (bench.fits.bit_length() - 1) if bench.fits else 0,
        fastest=min(
            (size for size, speed in speeds.items() if speed >= _AS_FAST * best), default=0
        ),
        limit=limit,
        trials=tuple(bench.trials),
        notes=tuple(notes),
    )


def _notes(cfg: Mapping[str, Any]) -> list[str]:
    if cfg.get("model_wrapper_cfg") is None:
        return []
    note = (
        "model_wrapper_cfg was off: a model that is sharded over processes leaves room for more, "
        "and buckets of gradients for less."
    )
    return [note]


def _loader(cfg: Mapping[str, Any]) -> DataLoader[Any]:
    settings = DataSettings(0, torch.Generator(), 0, 1)
    return build_dataloader(
        cfg["train_dataloader"], settings, shuffle=False, where="train_dataloader"
    )


def _attempt(cfg: Mapping[str, Any], size: int, steps: int) -> BatchTrial | str:
    """Return the trial, or why a batch of one is too small."""
    watch = _Watch(steps)
    trial: BatchTrial | str
    try:
        run_trial(cfg, watch)
        watch.check(size)
        trial = BatchTrial(size, True, size * watch.num_batches / watch.elapsed_s, watch.peak)  # noqa: FBT003
    except Exception as error:
        if is_out_of_memory(error):
            trial = BatchTrial(size, False)  # noqa: FBT003
        elif size == 1 and isinstance(error, ValueError) and _TOO_SMALL in text_of(error):
            trial = text_of(error)
        else:
            raise
    # Only now is the error gone, and with it the frames that hold what was computed.
    free_memory(watch.device_type)
    return trial


class _Watch(Hook):
    """Ends a run after some steps of the optimizer, and times all but the first."""

    priority = "LOWEST"

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._window = 1
        self._begin_s = 0.0
        self.device_type = "cpu"
        self.num_batches = 0
        self.elapsed_s = 0.0
        self.has_ended = False
        self.peak: int | None = None

    def check(self, size: int) -> None:
        """Raise a :class:`ConfigError` if the training ended before the trial."""
        if not self.has_ended:
            raise ConfigError(
                f"{_WHAT}: the training with a batch of {size} ended before {self._steps} steps "
                "were done; a hook of your own stopped it. Leave that out."
            )

    @override
    def before_train(self, runner: RunView) -> None:
        wrappers = named_wrappers(runner.optim_wrapper).values()
        self._window = max(getattr(one, "accumulative_counts", 1) for one in wrappers)
        self.device_type = runner.device.type
        start_counting(runner.device)

    @override
    def before_train_iter(self, runner: RunView, batch_idx: int, data_batch: Any = None) -> None:
        wait_for(runner.device)
        self._begin_s = time.perf_counter()

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        wait_for(runner.device)
        if runner.iter >= self._window:  # what is set up in the first step is set up by now
            self.elapsed_s += time.perf_counter() - self._begin_s
            self.num_batches += 1
        if runner.iter + 1 >= self._steps * self._window:
            self.peak, self.has_ended = peak_bytes(runner.device), True
            raise EndOfTrialError
