"""The largest batch that a training step survives, and the smallest that is as fast as any."""

from __future__ import annotations

import copy
import gc
import sys
import time
from collections.abc import Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils.data import Dataset, IterableDataset
from typing_extensions import override

from mm_runner.data import DataSettings, build_dataloader
from mm_runner.errors import ConfigError
from mm_runner.hooks import EMAHook, Hook
from mm_runner.optim import named_wrappers

from ._find_lr import config_of_trial
from ._out_of_memory import is_out_of_memory
from ._trial import EndOfTrialError, check_trains, train_with, trial_directory

if TYPE_CHECKING:
    from pathlib import Path

    from mm_runner.run_view import RunView

__all__ = ["BatchSizeReport", "BatchTrial", "find_batch_size"]

# Share of the best throughput that counts as equal to it.
_AS_FAST = 0.95
_LEAST_STEPS = 2
_WHAT = "find-batch-size"


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
    """Result of :func:`find_batch_size`.

    ``largest`` is the largest batch that fits, 0 if none does; ``limit`` names what limits it.
    ``power_of_two`` is the largest power of two that is not larger. ``fastest`` is the smallest
    batch within 5 % of the best throughput.
    """

    largest: int
    power_of_two: int
    fastest: int
    limit: str
    trials: tuple[BatchTrial, ...]


def find_batch_size(
    cfg: Mapping[str, Any],
    *,
    start: int = 2,
    maximum: int = 1024,
    steps: int = 5,
    report_trial: Callable[[BatchTrial], None] = lambda _: None,
) -> BatchSizeReport:
    """Train some steps with larger and larger batches, until the memory is full.

    The batch is doubled until it does not fit, and the range in between bisected. Each trial has a
    new model and optimizer (and its average, with :class:`mm_runner.hooks.EMAHook`), and the
    device's memory to itself. The user's own hooks run along, and clean up, but get no
    ``after_train`` and ``after_run``. The first samples of the dataset are read once, and make all
    batches: where samples differ in size, leave room. All takes place in one process.

    Args:
        cfg: A full configuration, as for ``Runner.from_cfg``. It is copied, but for the dataset.
        start: The first batch.
        maximum: The largest batch that is tried; a dataset with fewer samples limits it further.
        steps: Of the optimizer, in each trial; with accumulation, each takes several batches.
        report_trial: Is called with each trial as it ends.

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
    check_trains(cfg, _WHAT)
    cfg = {**cfg, "launcher": "none"}
    trials: list[BatchTrial] = []
    largest, too_large, limit = 0, 0, f"--max {maximum}"
    with trial_directory(cfg, _WHAT) as (directory, device):
        settings = DataSettings(0, torch.Generator(), 0, 1)
        given = cfg["train_dataloader"]
        loader = build_dataloader(given, settings, shuffle=False, where="train_dataloader")
        samples = _FirstSamples(loader.dataset)

        def fits(size: int) -> bool:
            options = {"collate_fn": loader.collate_fn, "pin_memory": loader.pin_memory}
            data = {"dataset": samples, "batch_size": size, "drop_last": True, **options}
            trials.append(_try({**cfg, "train_dataloader": data}, directory, size, steps, device))
            report_trial(trials[-1])
            return trials[-1].fits

        while not too_large and largest < maximum:
            wanted = min(2 * largest or start, maximum)
            found = samples.read(wanted)
            if not found:
                raise ConfigError(f"train_dataloader.dataset: it has no samples for {_WHAT}.")
            if found < wanted:
                plural = "" if found == 1 else "s"
                maximum, limit = found, f"the dataset, which has {found} sample{plural}"
            if found == largest or fits(found):
                largest = found
            else:
                too_large, limit = found, "the memory"
        while too_large - largest > 1:
            size = (largest + too_large) // 2
            if fits(size):
                largest = size
            else:
                too_large = size
    speeds = {one.size: one.samples_per_s for one in trials if one.samples_per_s is not None}
    enough = _AS_FAST * max(speeds.values(), default=0.0)
    return BatchSizeReport(
        largest=largest,
        power_of_two=1 << (largest.bit_length() - 1) if largest else 0,
        fastest=min((size for size, speed in speeds.items() if speed >= enough), default=0),
        limit=limit,
        trials=tuple(trials),
    )


class _FirstSamples(Dataset[Any]):
    """The first samples of a dataset, each read once."""

    def __init__(self, source: Any) -> None:
        self._samples: list[Any] = []
        is_stream = isinstance(source, IterableDataset)
        self._rest = iter(source) if is_stream else (source[i] for i in range(len(source)))

    def read(self, size: int) -> int:
        """Read up to ``size`` samples in all; return that number, or how many there are."""
        self._samples += islice(self._rest, max(size - len(self._samples), 0))
        return min(size, len(self._samples))

    def __len__(self) -> int:
        return len(self._samples)

    @override
    def __getitem__(self, index: int) -> Any:
        return copy.deepcopy(self._samples[index])  # a model may change it in place

    def __deepcopy__(self, memo: Any) -> _FirstSamples:
        return self  # the trials share it


def _try(
    cfg: Mapping[str, Any], directory: Path, size: int, steps: int, device: torch.device
) -> BatchTrial:
    """Train some steps, and free the memory that they took."""
    timer = _StepTimer(size, steps)
    trial = BatchTrial(size, fits=False)
    try:
        trial_cfg = config_of_trial(cfg, directory, _WHAT, keep=(EMAHook,))
        train_with({**trial_cfg, "load_from": None}, timer)
        speed = size * timer.num_batches / timer.elapsed_s
        trial = BatchTrial(size, fits=True, samples_per_s=speed, peak_bytes=_peak_bytes(device))
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    # After the except block: the error's frames hold tensors.
    compiler = sys.modules.get("torch._dynamo")
    if compiler is not None:
        compiler.reset()  # it keeps compiled models alive
    gc.collect()
    _call_device(device, "empty_cache")
    return trial


class _StepTimer(Hook):
    """Ends a run after some steps of the optimizer, and times all but the first."""

    priority = "LOWEST"

    def __init__(self, size: int, steps: int) -> None:
        self._size, self._steps = size, steps
        self._window = 1
        self._began_s = 0.0
        self.num_batches = 0
        self.elapsed_s = 0.0

    @override
    def before_train(self, runner: RunView) -> None:
        wrappers = named_wrappers(runner.optim_wrapper).values()
        self._window = max(getattr(one, "accumulative_counts", 1) for one in wrappers)
        _call_device(runner.device, "reset_peak_memory_stats")

    @override
    def before_train_iter(self, runner: RunView, batch_idx: int, data_batch: Any = None) -> None:
        _call_device(runner.device, "synchronize")
        self._began_s = time.perf_counter()

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        _call_device(runner.device, "synchronize")
        if runner.iter >= self._window:  # the first step sets up what the others use
            self.elapsed_s += time.perf_counter() - self._began_s
            self.num_batches += 1
        if runner.iter + 1 >= self._steps * self._window:
            raise EndOfTrialError

    @override
    def after_train(self, runner: RunView) -> None:
        raise ConfigError(
            f"{_WHAT}: the training with a batch of {self._size} ended before {self._steps} steps "
            "were done; a hook of your own stopped it. Leave that out."
        )


def _call_device(device: torch.device, name: str) -> Any:
    """Call a function of the device's module, such as ``torch.cuda``, if it has that."""
    function = getattr(getattr(torch, device.type, None), name, None)
    return None if function is None else function()


def _peak_bytes(device: torch.device) -> int | None:
    """Return the most memory used at a time: on the CPU by this process since it began."""
    if device.type != "cpu":
        peak = _call_device(device, "max_memory_allocated")
        return None if peak is None else int(peak)
    if sys.platform == "win32":
        return None
    import resource  # noqa: PLC0415 - not on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)
