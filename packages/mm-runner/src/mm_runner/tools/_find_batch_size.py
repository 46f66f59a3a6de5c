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
from mm_runner.diagnostics._throughput import peak_memory
from mm_runner.errors import ConfigError
from mm_runner.hooks import Hook
from mm_runner.optim import named_wrappers

from ._out_of_memory import is_out_of_memory
from ._trial import EndOfTrialError, endless_config, train_with, trial_directory

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

__all__ = ["BatchSizeReport", "BatchTrial", "find_batch_size"]

# Share of the best throughput that counts as equal to it.
_AS_FAST = 0.95
# Samples of the dataset of which all batches are made.
_NUM_SAMPLES = 16
_WHAT = "find-batch-size"


class BatchTrial(NamedTuple):
    """Some training steps with a batch of ``size``, or the attempt.

    ``samples_per_s`` counts from the second step on, and is ``None`` where it did not fit;
    ``peak_bytes`` is the most memory used at a time, on the CPU by this process so far.
    """

    size: int
    samples_per_s: float | None
    peak_bytes: int


class BatchSizeReport(NamedTuple):
    """Result of :func:`find_batch_size`.

    ``largest`` is the largest batch that fits, 0 if none does; ``fastest`` the smallest within 5 %
    of the best throughput.
    """

    largest: int
    fastest: int
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
    new model and optimizer, and the device's memory to itself; the hooks of mm-runner are left out.
    The user's own hooks run along, and clean up, but get no ``after_train`` and ``after_run``. The
    first samples of the dataset make all batches: where samples differ in size, leave room. All
    takes place in one process.

    Args:
        cfg: A full configuration, as for ``Runner.from_cfg``. It is copied, but for the dataset.
        start: The first batch.
        maximum: The largest batch that is tried.
        steps: Of the optimizer, in each trial; with accumulation, each takes several batches.
        report_trial: Is called with each trial as it ends.

    Raises:
        ConfigError: If the configuration or an argument does not fit.
        Exception: What a step raises besides errors of memory.

    Example:
        >>> find_batch_size(cfg, maximum=64).largest  # doctest: +SKIP
        48
    """
    if not 0 < start <= maximum or steps < 2:
        raise ConfigError(
            f"{_WHAT}: 0 < start <= max, and 2 steps at least are needed; got start={start}, "
            f"max={maximum}, steps={steps}."
        )
    trials: list[BatchTrial] = []
    with trial_directory({**cfg, "launcher": "none"}, _WHAT) as (directory, device):
        where = "train_dataloader"
        given = cfg.get(where)
        changes = {"launcher": "none", "load_from": None, where: given and {"dataset": None}}
        endless = endless_config({**cfg, **changes}, directory, _WHAT)  # without the data
        settings = DataSettings(0, torch.Generator(), 0, 1)
        loader = build_dataloader(given or {}, settings, shuffle=False, where=where)
        samples = _first_samples(loader.dataset)

        def fits(size: int) -> bool:
            own: dict[str, Any] = {"dataset": _Repeated(samples, size), "batch_size": size}
            own |= {"collate_fn": loader.collate_fn, "pin_memory": loader.pin_memory}
            speed = _try({**copy.deepcopy(endless), where: own}, size, steps, device)
            trials.append(BatchTrial(size, speed, peak_memory(device)))
            report_trial(trials[-1])
            return speed is not None

        largest, too_large = 0, start
        while fits(too_large):
            largest, too_large = too_large, min(2 * too_large, maximum)
            if largest == maximum:
                break
        while too_large - largest > 1:
            middle = (largest + too_large) // 2
            if fits(middle):
                largest = middle
            else:
                too_large = middle
    speeds = {one.size: one.samples_per_s for one in trials if one.samples_per_s is not None}
    enough = _AS_FAST * max(speeds.values(), default=0.0)
    fastest = min((size for size, speed in speeds.items() if speed >= enough), default=0)
    return BatchSizeReport(largest, fastest, tuple(trials))


def _first_samples(dataset: Any) -> list[Any]:
    is_stream = isinstance(dataset, IterableDataset)
    stream = iter(dataset) if is_stream else (dataset[index] for index in range(len(dataset)))
    samples = list(islice(stream, _NUM_SAMPLES))
    if not samples:
        raise ConfigError(f"train_dataloader.dataset: it has no samples for {_WHAT}.")
    return samples


class _Repeated(Dataset[Any]):
    """Some samples again and again; each batch of ``size`` is an epoch."""

    def __init__(self, samples: list[Any], size: int) -> None:
        self._samples, self._size = samples, size

    def __len__(self) -> int:
        return self._size

    @override
    def __getitem__(self, index: int) -> Any:
        # A model may change a sample in place.
        return copy.deepcopy(self._samples[index % len(self._samples)])


def _try(cfg: Mapping[str, Any], size: int, steps: int, device: torch.device) -> float | None:
    """Train some steps, and free the memory that they took; return samples per second."""
    timer = _StepTimer(steps)
    speed = None
    try:
        train_with(cfg, timer)
        speed = size * timer.num_batches / timer.elapsed_s
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    # After the except block: the error's frames hold tensors.
    compiler = sys.modules.get("torch._dynamo")
    if compiler is not None:
        compiler.reset()  # it keeps compiled models alive
    gc.collect()
    _call_device(device, "empty_cache")
    return speed


class _StepTimer(Hook):
    """Ends a run after some steps of the optimizer, and times all but the first."""

    priority = "LOWEST"

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._window = 1
        self._began_s = self.elapsed_s = 0.0
        self.num_batches = 0

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
            f"{_WHAT}: the training ended before {self._steps} steps were done; a hook of your own "
            "stopped it. Leave that out."
        )


def _call_device(device: torch.device, name: str) -> None:
    """Call a function of the device's module, such as ``torch.cuda``, if it has that."""
    function = getattr(getattr(torch, device.type, None), name, None)
    if function is not None:
        function()
