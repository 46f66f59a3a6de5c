"""Throughput of a run: samples, tokens and FLOPs per second, data waiting, memory, slow ranks."""

from __future__ import annotations

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
from mm_runner._tf32 import uses_tf32
from mm_runner.errors import ConfigError
from mm_runner.hooks import Hook
from mm_runner.hooks._arguments import check_integer
from mm_runner.hooks._iter_timer import DataWaits
from mm_runner.hooks._logger import count_samples
from mm_runner.optim import computes_in_half, named_wrappers

from ._peaks import peak_of

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

__all__ = ["ThroughputHook"]

# Part of a step by which a rank must lag behind to be named; less is noise.
_LAG_SHARE = 0.05


@dataclass
class Measured:
    """Sums over the steps of one process since the last report.

    Attributes:
        steps: Training steps.
        samples: Samples in them.
        tokens: Tokens in them, 0 if they are not counted.
        elapsed_s: Seconds they took, waiting for data included, validations not.
        waited_s: Seconds of waiting for data.
        forward_s: Seconds of one forward, 0 if unknown.
        memory: Peak memory so far, in bytes.
    """

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
        peak_flops: FLOP/s of one device. By default from a table of devices, in the precision in
            use.

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
        self.interval = interval
        self.tokens = tokens
        self.flops_per_sample = flops_per_sample
        self.peak_flops = peak_flops
        self.ranks: list[Measured] = []
        self.scalars: dict[str, float] = {}
        self._why_no_flops: str | None = None
        self._flop_counter: Any = None
        self._measured = Measured()
        self._forward: _ForwardTimer | None = None
        self._waits: DataWaits | None = None
        self._last = 0.0
        self._is_first_step = True

    @override
    def before_train(self, runner: RunView) -> None:
        compiled = runner.cfg.get("compile")
        self._measured, self._why_no_flops, self._is_first_step = Measured(), None, True
        if compiled:
            self._why_no_flops = "a compiled model is not counted; give flops_per_sample"
        self._waits = DataWaits.of_run(runner)
        # Hooks of a step that is compiled as a whole would be compiled with it.
        whole_step = isinstance(compiled, dict) and compiled.get("target") == "train_step"
        if runner.world_size > 1 and not whole_step:
            self._forward = _ForwardTimer(runner.model, runner.device)
        if self.peak_flops is None:
            self.peak_flops = _peak_of_run(runner)
        self._last = time.perf_counter()

    @override
    def before_train_epoch(self, runner: RunView) -> None:
        self._last = time.perf_counter()

    @override
    def after_val(self, runner: RunView) -> None:
        self._last = time.perf_counter()

    @override
    def before_train_iter(self, runner: RunView, batch_idx: int, data_batch: Any = None) -> None:
        if self._waits is not None:
            self._measured.waited_s += self._waits.take_s()
        else:
            self._measured.waited_s += time.perf_counter() - self._last
        # Not the first step, which may do what later ones do not.
        is_known = self.flops_per_sample is not None or self._why_no_flops is not None
        if not self._is_first_step and not is_known:
            self._begin_counting()
        self._is_first_step = False

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        measured, now = self._measured, time.perf_counter()
        samples = count_samples(data_batch)
        if self._flop_counter is not None:
            self._end_counting(samples)
        measured.steps += 1
        measured.samples += samples
        if self.tokens is not None:
            measured.tokens += count_tokens(data_batch, self.tokens)
        measured.elapsed_s += now - self._last
        self._last = now
        if self.every_n_train_iters(runner, self.interval):
            self._report(runner)
            self._last = time.perf_counter()

    @override
    def clean_up(self, runner: RunView) -> None:
        counter, self._flop_counter = self._flop_counter, None
        if counter is not None:
            counter.__exit__(None, None, None)
        if self._forward is not None:
            self._forward.remove()
            self._forward = None

    def _begin_counting(self) -> None:
        try:
            from torch.utils.flop_counter import FlopCounterMode  # noqa: PLC0415 - heavy, used once
        except ImportError:
            self._why_no_flops = "torch counts from 2.1 on; give flops_per_sample"
            return
        self._flop_counter = FlopCounterMode(display=False)
        self._flop_counter.__enter__()

    def _end_counting(self, samples: int) -> None:
        counter, self._flop_counter = self._flop_counter, None
        counter.__exit__(None, None, None)
        total = counter.get_total_flops()
        if total:
            self.flops_per_sample = total / max(samples, 1)
        else:
            self._why_no_flops = "torch knows no operation of this model; give flops_per_sample"

    def _report(self, runner: RunView) -> None:
        measured, self._measured = self._measured, Measured()
        measured.memory = _peak_memory(runner.device)
        if self._forward is not None:
            measured.forward_s = self._forward.read_s()
        self.ranks = _gather(measured)
        self.scalars = self._scalars(self.ranks)
        runner.logger.info(f"Throughput: {self._line(self.scalars, measured)}")
        runner.write_scalars("train", self.scalars, step=runner.iter + 1)

    def _scalars(self, ranks: list[Measured]) -> dict[str, float]:
        elapsed_s = max(one.elapsed_s for one in ranks)
        scalars = {"samples_per_s": sum(one.samples for one in ranks) / elapsed_s}
        if self.tokens is not None:
            scalars["tokens_per_s"] = sum(one.tokens for one in ranks) / elapsed_s
        if self.flops_per_sample is not None:
            flops_per_s = scalars["samples_per_s"] * self.flops_per_sample / len(ranks)
            scalars["flops_per_s"] = flops_per_s
            if self.peak_flops:
                scalars["mfu"] = flops_per_s / self.peak_flops
        scalars["data_wait_share"] = max(one.waited_s / one.elapsed_s for one in ranks)
        scalars["memory_mb"] = max(one.memory for one in ranks) / 2**20
        if len(ranks) > 1:
            # Time that a rank does not share: in backward all of them wait for each other.
            own = [one.waited_s / one.steps + one.forward_s for one in ranks]
            scalars["slowest_rank"] = own.index(max(own))
            scalars["lag_s"] = max(own) - median(own)
        return scalars

    def _line(self, scalars: Mapping[str, float], measured: Measured) -> str:
        parts = [f"{scalars['samples_per_s']:,.1f} samples/s"]
        if "tokens_per_s" in scalars:
            parts.append(f"{scalars['tokens_per_s']:,.0f} tokens/s")
        if "flops_per_s" in scalars:
            mfu = f" ({scalars['mfu']:.1%} of its peak)" if "mfu" in scalars else ""
            parts.append(f"{scalars['flops_per_s'] / 1e12:.3g} TFLOP/s per device{mfu}")
        elif self._why_no_flops is not None:
            parts.append(f"FLOPs unknown: {self._why_no_flops}")
        parts.append(f"{scalars['data_wait_share']:.0%} waiting for data")
        parts.append(f"{scalars['memory_mb']:,.0f} MB")
        lag_s = scalars.get("lag_s", 0.0)
        if lag_s > _LAG_SHARE * measured.elapsed_s / measured.steps:
            rank = scalars["slowest_rank"]
            parts.append(f"slowest is rank {rank:.0f}, {lag_s:.3g} s per step behind")
        return ", ".join(parts)


class _ForwardTimer:
    """Times one forward per report, on a device by events.

    Ranks wait for each other in backward, but not in the forward of replicated models, which
    shows the slow one.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._event: Any = None
        if device.type != "cpu":
            self._event = getattr(getattr(torch, device.type, None), "Event", None)
        self._marks: list[Any] = []
        self._handles = [
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

    def remove(self) -> None:
        """Remove the hooks from the model."""
        for handle in self._handles:
            handle.remove()

    def _mark(self, index: int) -> None:
        if len(self._marks) != index:
            return
        if self._event is None:
            self._marks.append(time.perf_counter())
        else:
            mark = self._event(enable_timing=True)
            mark.record()
            self._marks.append(mark)


def count_tokens(batch: Any, tokens: str | Callable[[Any], int]) -> int:
    """Return the number of tokens in a batch.

    Args:
        batch: As the loader gives it.
        tokens: The key of a tensor whose elements they are, or a function of the batch.

    Raises:
        ConfigError: If the batch has no tensor under that key.
    """
    if not isinstance(tokens, str):
        return int(tokens(batch))
    found = batch.get(tokens) if isinstance(batch, Mapping) else None
    if not isinstance(found, Tensor):
        held = ", ".join(map(repr, batch)) if isinstance(batch, Mapping) else type(batch).__name__
        raise ConfigError(
            f"ThroughputHook.tokens: {tokens!r} is no tensor of the batch; it has {held}. Give a "
            "key, or a function of the batch."
        )
    return found.numel()


def _gather(measured: Measured) -> list[Measured]:
    mine = torch.tensor(astuple(measured), dtype=torch.float64)
    return [Measured(*one.tolist()) for one in mm_dist.all_gather(mine)]


def _peak_of_run(runner: RunView) -> float | None:
    name = getattr(getattr(torch, runner.device.type, None), "get_device_name", None)
    if name is None:
        return None
    wrappers = named_wrappers(runner.optim_wrapper).values()
    is_half = any(map(computes_in_half, wrappers)) or any(
        parameter.dtype in (torch.float16, torch.bfloat16)
        for parameter in runner.model.parameters()
    )
    single = "tf32" if uses_tf32() else "single"
    return peak_of(name(runner.device), "half" if is_half else single)


def _peak_memory(device: torch.device) -> float:
    """Return the peak memory so far in bytes: the device's, on the CPU the process's."""
    measure = getattr(getattr(torch, device.type, None), "max_memory_allocated", None)
    if measure is not None:
        return float(measure(device))
    if sys.platform == "win32":
        return 0.0
    import resource  # noqa: PLC0415 - not on Windows

    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)
