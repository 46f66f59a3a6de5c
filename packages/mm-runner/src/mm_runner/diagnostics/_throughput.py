"""Throughput of a run: samples, tokens and FLOPs per second, data waiting, memory, slow ranks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from typing_extensions import override

import mm_dist
from mm_runner.errors import ConfigError
from mm_runner.hooks import Hook
from mm_runner.registry import check_integer

if TYPE_CHECKING:
    from mm_runner.data import BatchFeed
    from mm_runner.run_view import RunView

# Share of a step by which a rank must lag behind to be reported; less is noise.
_LAG_SHARE = 0.05


@dataclass
class Measured:
    """Sums over the steps of one process since the last report; memory is the device's peak."""

    steps: float = 0.0
    samples: float = 0.0
    tokens: float = 0.0
    elapsed_s: float = 0.0
    waited_s: float = 0.0
    forward_s: float = 0.0
    memory: float = 0.0


class ThroughputHook(Hook):
    """Report how fast a run trains: in the log, and as scalars in the run's files.

    Every ``interval`` steps, over all processes: samples, tokens and FLOPs per second, the part of
    the time spent waiting for data, the device's peak memory, and the slowest rank if the others
    wait for it. Validations do not count. Nothing waits for the device; the processes exchange a
    few numbers once per interval.

    Args:
        interval: Training steps between two reports. Defaults to 50.
        tokens: Key of the batch's tensor whose elements are the tokens. Defaults to ``None``:
            tokens are not counted.
        flops_per_sample: FLOPs of forward and backward per sample, such as
            ``torch.utils.flop_counter.FlopCounterMode`` counts. Defaults to ``None``: not reported.
        peak_flops: FLOP/s of one device, for its utilization. Defaults to ``None``: not reported.

    Attributes:
        ranks: The numbers of each process in the last report.

    Raises:
        ConfigError: If ``interval`` or another number is not positive.

    Example:
        >>> hook = ThroughputHook(tokens="input_ids")  # or dict(type="ThroughputHook", ...)
    """

    def __init__(
        self,
        interval: int = 50,
        tokens: str | None = None,
        flops_per_sample: float | None = None,
        peak_flops: float | None = None,
    ) -> None:
        check_integer("ThroughputHook.interval", interval, least=1)
        for name, value in (("flops_per_sample", flops_per_sample), ("peak_flops", peak_flops)):
            if value is not None and not value > 0:
                raise ConfigError(f"ThroughputHook.{name}: a positive number, got {value!r}.")
        self.interval, self.tokens = interval, tokens
        self.flops_per_sample, self.peak_flops = flops_per_sample, peak_flops
        self.ranks: list[Measured] = []
        self._measured = Measured()
        self._forward: _ForwardTimer | None = None
        self._feed: BatchFeed | None = None
        self._waited_s = 0.0  # up to the last report
        self._began = self._val_began = 0.0

    @override
    def before_train(self, runner: RunView) -> None:
        self._feed = getattr(runner.train_loop, "batches", None)  # not every loop times them
        # Hooks of a step that is compiled as a whole would be compiled with it.
        compiled = runner.cfg.get("compile")
        whole_step = isinstance(compiled, dict) and compiled.get("target") == "train_step"
        if runner.world_size > 1 and not whole_step:
            self._forward = _ForwardTimer(runner.model, runner.device)
        self._begin()

    @override
    def before_val(self, runner: RunView) -> None:
        self._val_began = time.perf_counter()

    @override
    def after_val(self, runner: RunView) -> None:
        self._began += time.perf_counter() - self._val_began

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        measured = self._measured
        measured.steps += 1
        measured.samples += count_samples(data_batch)
        if self.tokens is not None:
            found = data_batch.get(self.tokens) if isinstance(data_batch, Mapping) else None
            if not isinstance(found, Tensor):
                raise ConfigError(
                    f"ThroughputHook.tokens: {self.tokens!r} is no tensor of the batch; it has "
                    f"{list(data_batch) if isinstance(data_batch, Mapping) else type(data_batch)}."
                )
            measured.tokens += found.numel()
        if self.every_n_train_iters(runner, self.interval):
            self._report(runner)
            self._begin()

    @override
    def clean_up(self, runner: RunView) -> None:
        if self._forward is not None:
            for handle in self._forward.handles:
                handle.remove()
            self._forward = None

    def _begin(self) -> None:
        self._measured = Measured()
        self._waited_s = self._feed.waited_s if self._feed is not None else 0.0
        self._began = time.perf_counter()

    def _report(self, runner: RunView) -> None:
        measured = self._measured
        measured.elapsed_s = time.perf_counter() - self._began
        if self._feed is not None:
            measured.waited_s = self._feed.waited_s - self._waited_s
        peak = getattr(getattr(torch, runner.device.type, None), "max_memory_allocated", None)
        measured.memory = peak(runner.device) if peak is not None else 0
        if self._forward is not None:
            measured.forward_s = self._forward.read_s()
        mine = torch.tensor(astuple(measured), dtype=torch.float64)
        self.ranks = ranks = [Measured(*one.tolist()) for one in mm_dist.all_gather(mine)]
        elapsed_s = max(one.elapsed_s for one in ranks)
        scalars = {"samples_per_s": sum(one.samples for one in ranks) / elapsed_s}
        parts = [f"{scalars['samples_per_s']:,.1f} samples/s"]
        if self.tokens is not None:
            scalars["tokens_per_s"] = sum(one.tokens for one in ranks) / elapsed_s
            parts.append(f"{scalars['tokens_per_s']:,.0f} tokens/s")
        if self.flops_per_sample is not None:
            scalars["flops_per_s"] = scalars["samples_per_s"] * self.flops_per_sample / len(ranks)
            parts.append(f"{scalars['flops_per_s'] / 1e12:.3g} TFLOP/s per device")
            if self.peak_flops is not None:
                scalars["mfu"] = scalars["flops_per_s"] / self.peak_flops
                parts.append(f"{scalars['mfu']:.1%} of its peak")
        scalars["data_wait_share"] = max(one.waited_s / one.elapsed_s for one in ranks)
        parts.append(f"{scalars['data_wait_share']:.0%} waiting for data")
        if peak is not None:
            scalars["memory_mb"] = max(one.memory for one in ranks) / 2**20
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


def count_samples(batch: Any) -> int:
    """Return the number of samples in a batch, by its first entry.

    That entry is a tensor of all samples, or a list of one thing per sample; a list of dicts is a
    list of samples itself.
    """
    first = next(iter(batch.values()), None) if isinstance(batch, Mapping) else batch
    if isinstance(batch, (tuple, list)) and batch:
        first = batch[0]
    if isinstance(first, Tensor):
        return len(first) if first.ndim else 1
    if isinstance(first, (tuple, list)):
        return len(first)
    return len(batch) if isinstance(batch, (tuple, list)) else 1
