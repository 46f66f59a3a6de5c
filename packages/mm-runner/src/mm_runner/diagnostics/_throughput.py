"""Throughput of a run: samples, tokens and FLOPs per second, data waiting, memory, slow ranks."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from typing_extensions import override

import mm_dist
from mm_runner._torch_private import uses_tf32
from mm_runner.errors import ConfigError
from mm_runner.hooks import Hook
from mm_runner.hooks._arguments import check_integer
from mm_runner.hooks._iter_timer import feed_of_training
from mm_runner.hooks._logger import count_samples
from mm_runner.optim import computes_in_half, named_wrappers

if TYPE_CHECKING:
    from mm_runner.data import BatchFeed
    from mm_runner.run_view import RunView

__all__ = ["ThroughputHook"]

# Part of a step by which a rank must lag behind to be named; less is noise.
_LAG_SHARE = 0.05
# Peak of dense matrix products in TFLOP/s, from the makers' datasheets: the words of a device's
# name, then float16 and bfloat16, TF32 (0 without), float32. The first that fits counts.
_PEAKS: tuple[tuple[Any, ...], ...] = (
    ("b200", 2250, 1125, 80),
    ("h200", 989.4, 494.7, 66.9),
    ("h100 pcie", 756, 378, 51),
    ("h100", 989.4, 494.7, 66.9),
    ("a100", 312, 156, 19.5),
    ("l40s", 362, 183, 91.6),
    ("l4", 121, 60, 30.3),
    ("v100", 125, 0, 15.7),
    ("t4", 65, 0, 8.1),
    ("mi300x", 1307.4, 653.7, 163.4),
)


@dataclass
class Measured:
    """Sums over the steps of one process since the last report; memory is the peak so far."""

    steps: float = 0.0
    samples: float = 0.0
    tokens: float = 0.0
    elapsed_s: float = 0.0
    waited_s: float = 0.0
    forward_s: float = 0.0
    memory: float = 0.0


class ThroughputHook(Hook):
    """Reports how fast a run trains: in the log, and as scalars in the run's files.

    Every ``interval`` steps, over all processes: samples and tokens per second, model FLOPs
    utilisation, the part of the time spent waiting for data, the most memory in use, and the
    slowest rank if the others wait for it. Validations do not count. Nothing waits for the device;
    the processes exchange a few numbers once per interval.

    Args:
        interval: Training steps between two reports. Defaults to 50.
        tokens: Key of the batch's tensor whose elements are the tokens, or a function that counts
            them in a batch. Defaults to ``None``: tokens are not counted.
        flops_per_sample: FLOPs of forward and backward per sample. By default torch's
            ``FlopCounterMode`` counts them in the second step (torch 2.1, not for compiled
            models); what activation checkpointing recomputes counts too.
        peak_flops: FLOP/s of one device. By default from a table of common devices, in the
            precision in use.

    Attributes:
        ranks: The numbers of each process in the last report.
        scalars: The scalars of the last report.

    Raises:
        ConfigError: If ``interval`` or another number is not positive, or ``tokens`` is neither.

    Example:
        >>> hook = ThroughputHook(tokens="input_ids")  # or dict(type="ThroughputHook", ...)
    """

    def __init__(
        self,
        interval: int = 50,
        tokens: str | Callable[[Any], int] | None = None,
        flops_per_sample: float | None = None,
        peak_flops: float | None = None,
    ) -> None:
        check_integer("ThroughputHook.interval", interval, least=1)
        if not (tokens is None or isinstance(tokens, str) or callable(tokens)):
            raise ConfigError(
                f"ThroughputHook.tokens: a key of the batch or a function, got {tokens!r}."
            )
        for name, value in (("flops_per_sample", flops_per_sample), ("peak_flops", peak_flops)):
            if value is not None and not value > 0:
                raise ConfigError(f"ThroughputHook.{name}: a positive number, got {value!r}.")
        self.interval, self.tokens = interval, tokens
        self.flops_per_sample, self.peak_flops = flops_per_sample, peak_flops
        self.ranks: list[Measured] = []
        self.scalars: dict[str, float] = {}
        self._flop_counter: Any = None
        self._measured = Measured()
        self._forward: _ForwardTimer | None = None
        self._feed: BatchFeed | None = None
        self._waited_s = 0.0  # up to the newest step
        self._last = 0.0
        self._counts_flops = False

    @override
    def before_train(self, runner: RunView) -> None:
        compiled = runner.cfg.get("compile")
        self._measured = Measured()
        self._counts_flops = self.flops_per_sample is None and not compiled
        self._feed = feed_of_training(runner)
        self._waited_s = self._feed.waited_s if self._feed is not None else 0.0
        # Hooks of a step that is compiled as a whole would be compiled with it.
        whole_step = isinstance(compiled, dict) and compiled.get("target") == "train_step"
        if runner.world_size > 1 and not whole_step:
            self._forward = _ForwardTimer(runner.model, runner.device)
        self.peak_flops = self.peak_flops or _peak_of_run(runner)
        self._last = time.perf_counter()

    @override
    def before_train_epoch(self, runner: RunView) -> None:
        self._last = time.perf_counter()

    @override
    def after_val(self, runner: RunView) -> None:
        self._last = time.perf_counter()

    @override
    def before_train_iter(self, runner: RunView, batch_idx: int, data_batch: Any = None) -> None:
        if self._feed is None:  # a loop that times no batches
            self._measured.waited_s += time.perf_counter() - self._last
        else:
            self._measured.waited_s += self._feed.waited_s - self._waited_s
            self._waited_s = self._feed.waited_s
        # Not in the first step, which may do what later ones do not.
        if self._counts_flops and (self._measured.steps or self.ranks):
            self._counts_flops = False
            try:
                from torch.utils.flop_counter import FlopCounterMode  # noqa: PLC0415 - heavy
            except ImportError:  # before torch 2.1
                return
            self._flop_counter = FlopCounterMode(display=False)
            self._flop_counter.__enter__()

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        measured, now = self._measured, time.perf_counter()
        samples = count_samples(data_batch)
        if self._flop_counter is not None:
            counter = self._stop_counter()
            self.flops_per_sample = counter.get_total_flops() / max(samples, 1) or None
        measured.steps += 1
        measured.samples += samples
        measured.tokens += self._count_tokens(data_batch)
        measured.elapsed_s += now - self._last
        self._last = now
        if self.every_n_train_iters(runner, self.interval):
            self._report(runner)
            self._last = time.perf_counter()

    @override
    def clean_up(self, runner: RunView) -> None:
        if self._flop_counter is not None:
            self._stop_counter()
        if self._forward is not None:
            for handle in self._forward.handles:
                handle.remove()
            self._forward = None

    def _stop_counter(self) -> Any:
        counter, self._flop_counter = self._flop_counter, None
        counter.__exit__(None, None, None)
        return counter

    def _count_tokens(self, batch: Any) -> int:
        if not isinstance(self.tokens, str):
            return int(self.tokens(batch)) if self.tokens else 0
        found = batch.get(self.tokens) if isinstance(batch, Mapping) else None
        if not isinstance(found, Tensor):
            held = list(batch) if isinstance(batch, Mapping) else type(batch).__name__
            raise ConfigError(
                f"ThroughputHook.tokens: {self.tokens!r} is no tensor of the batch; it has {held}. "
                "Give a key, or a function of the batch."
            )
        return found.numel()

    def _report(self, runner: RunView) -> None:
        measured, self._measured = self._measured, Measured()
        measured.memory = _peak_memory(runner.device)
        if self._forward is not None:
            measured.forward_s = self._forward.read_s()
        mine = torch.tensor(astuple(measured), dtype=torch.float64)
        self.ranks = ranks = [Measured(*one.tolist()) for one in mm_dist.all_gather(mine)]
        elapsed_s = max(one.elapsed_s for one in ranks)
        self.scalars = scalars = {"samples_per_s": sum(one.samples for one in ranks) / elapsed_s}
        parts = [f"{scalars['samples_per_s']:,.1f} samples/s"]
        if self.tokens is not None:
            scalars["tokens_per_s"] = sum(one.tokens for one in ranks) / elapsed_s
            parts.append(f"{scalars['tokens_per_s']:,.0f} tokens/s")
        if self.flops_per_sample is not None:
            scalars["flops_per_s"] = scalars["samples_per_s"] * self.flops_per_sample / len(ranks)
            parts.append(f"{scalars['flops_per_s'] / 1e12:.3g} TFLOP/s per device")
            if self.peak_flops:
                scalars["mfu"] = scalars["flops_per_s"] / self.peak_flops
                parts.append(f"{scalars['mfu']:.1%} of its peak")
        scalars["data_wait_share"] = max(one.waited_s / one.elapsed_s for one in ranks)
        scalars["memory_mb"] = max(one.memory for one in ranks) / 2**20
        parts.append(f"{scalars['data_wait_share']:.0%} waiting for data")
        parts.append(f"{scalars['memory_mb']:,.0f} MB")
        if len(ranks) > 1:
            # Time that a rank does not share: in backward all of them wait for each other.
            own = [one.waited_s / one.steps + one.forward_s for one in ranks]
            slowest = own.index(max(own))
            scalars |= {"slowest_rank": slowest, "lag_s": max(own) - median(own)}
            if scalars["lag_s"] > _LAG_SHARE * measured.elapsed_s / measured.steps:
                parts.append(f"slowest is rank {slowest}, {scalars['lag_s']:.3g} s per step behind")
        runner.logger.info(f"Throughput: {', '.join(parts)}")
        runner.write_scalars("train", scalars, step=runner.iter + 1)


class _ForwardTimer:
    """Times one forward per report, on a device by events.

    Ranks wait for each other in backward, but not in the forward of replicated models, which
    shows the slow one.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        module = None if device.type == "cpu" else getattr(torch, device.type, None)
        self._event: Any = getattr(module, "Event", None)
        self._marks: list[Any] = []
        self.handles = [
            model.register_forward_pre_hook(lambda *_: self._mark(0)),
            model.register_forward_hook(lambda *_: self._mark(1)),
        ]

    def read_s(self) -> float:
        """Return the seconds of the forward timed last, 0 if unknown; time the next forward."""
        marks, self._marks = self._marks, []
        if len(marks) < 2:
            return 0.0
        begin, end = marks
        if self._event is None:
            return float(end - begin)
        return float(begin.elapsed_time(end)) / 1e3 if end.query() else 0.0

    def _mark(self, index: int) -> None:
        if len(self._marks) != index:
            return
        mark: Any = time.perf_counter()
        if self._event is not None:
            mark = self._event(enable_timing=True)
            mark.record()
        self._marks.append(mark)


def _peak_of_run(runner: RunView) -> float | None:
    """Return the peak of the device in FLOP/s in the precision in use, ``None`` if unknown."""
    name_of = getattr(getattr(torch, runner.device.type, None), "get_device_name", None)
    words = set(re.split(r"[^a-z0-9]+", name_of(runner.device).lower() if name_of else ""))
    wrappers = named_wrappers(runner.optim_wrapper).values()
    column = 0 if any(map(computes_in_half, wrappers)) else 1 if uses_tf32() else 2
    for known, *peaks in _PEAKS:
        if words.issuperset(known.split()):
            return 1e12 * peaks[column] or None
    return None


def _peak_memory(device: torch.device) -> int:
    """Return the peak memory so far in bytes: the device's, on the CPU the process's."""
    measure = getattr(getattr(torch, device.type, None), "max_memory_allocated", None)
    if measure is not None:
        return int(measure(device))
    if sys.platform == "win32":
        return 0
    import resource  # noqa: PLC0415 - not on Windows

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
