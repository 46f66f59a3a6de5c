"""The hook that tells how fast a run trains."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from typing_extensions import override

from mm_runner._tf32 import uses_tf32
from mm_runner.errors import ConfigError
from mm_runner.hooks._data_waits import DataWaits
from mm_runner.hooks._hook import Hook
from mm_runner.optim import computes_in_half, named_wrappers

from ._batch_size import count_samples, count_tokens
from ._flops import FlopCount
from ._interval import Measured, Report, gather_report
from ._own_time import OwnTime
from ._peaks import peak_of

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

__all__ = ["ThroughputHook"]

# Of a step; less is noise.
_WORTH_TELLING = 0.05


class ThroughputHook(Hook):
    """Tells how fast a run trains: in the log, and as scalars in the run's files.

    Every ``interval`` steps, over all processes: samples and tokens per second, model FLOPs
    utilisation, the part of the time spent waiting for data, the most memory in use, and the
    slowest rank if the others wait for it. Validations do not count. Nothing waits for the device;
    the processes exchange a few numbers once per interval.

    Args:
        interval: Training steps between two reports. Defaults to 50.
        tokens: Key of the batch's tensor whose elements are the tokens, or a function that counts
            them in a batch. Defaults to ``None``: tokens are not counted.
        flops_per_sample: Operations of forward and backward per sample. By default they are counted
            once, in the second step, with torch's counter (torch 2.1, not for compiled models),
            which counts those that activation checkpointing recomputes too.
        peak_flops: What one device can do per second. By default that of a table of devices, in
            the precision in use.

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
        if not isinstance(interval, int) or isinstance(interval, bool) or interval < 1:
            raise ConfigError(
                f"ThroughputHook.interval: a positive number of steps is needed, got {interval!r}."
            )
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
        self.report: Report | None = None
        self._flops = FlopCount(flops_per_sample, is_compiled=False)
        self._measured = Measured()
        self._own_time: OwnTime | None = None
        self._waits: DataWaits | None = None
        self._last = 0.0

    @override
    def before_train(self, runner: RunView) -> None:
        compiled = runner.cfg.get("compile")
        self._flops = FlopCount(self.flops_per_sample, is_compiled=bool(compiled))
        self._measured = Measured()
        self._waits = DataWaits.of_run(runner)
        # Hooks of a step that is compiled as a whole would be compiled with it.
        whole_step = isinstance(compiled, dict) and compiled.get("target") == "train_step"
        if runner.world_size > 1 and not whole_step:
            self._own_time = OwnTime(runner.model, runner.device)
            self._own_time.arm()
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
        self._flops.before_step()

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        self._flops.after_step(data_batch)
        measured, now = self._measured, time.perf_counter()
        measured.steps += 1
        measured.samples += count_samples(data_batch)
        if self.tokens is not None:
            measured.tokens += count_tokens(data_batch, self.tokens)
        measured.elapsed_s += now - self._last
        self._last = now
        if self.every_n_train_iters(runner, self.interval):
            self._tell(runner)
            self._last = time.perf_counter()

    @override
    def clean_up(self, runner: RunView) -> None:
        self._flops.stop()
        if self._own_time is not None:
            self._own_time.remove()
            self._own_time = None

    def _tell(self, runner: RunView) -> None:
        measured, self._measured = self._measured, Measured()
        measured.memory = _memory(runner.device)
        if self._own_time is not None:
            measured.forward_s = self._own_time.read_s()
            self._own_time.arm()
        self.report = gather_report(measured)
        scalars = self._scalars(self.report)
        runner.logger.info(f"Throughput: {self._line(self.report, scalars)}")
        runner.write_scalars("train", scalars, step=runner.iter + 1)

    def _scalars(self, report: Report) -> dict[str, float]:
        scalars = {"samples_per_s": report.samples_per_s}
        if self.tokens is not None:
            scalars["tokens_per_s"] = report.tokens_per_s
        flops = self._flops.per_sample
        if flops is not None:
            done = report.samples_per_s * flops / len(report.ranks)
            scalars["flops_per_s"] = done
            if self.peak_flops:
                scalars["mfu"] = done / self.peak_flops
        scalars["data_wait_share"] = report.data_wait_share
        scalars["memory_mb"] = report.memory / 2**20
        if len(report.ranks) > 1:
            scalars["slowest_rank"] = report.slowest_rank
            scalars["lag_s"] = report.lag_s
        return scalars

    def _line(self, report: Report, scalars: dict[str, float]) -> str:
        parts = [f"{report.samples_per_s:,.1f} samples/s"]
        if self.tokens is not None:
            parts.append(f"{report.tokens_per_s:,.0f} tokens/s")
        if "flops_per_s" in scalars:
            each = f"{scalars['flops_per_s'] / 1e12:.3g} TFLOP/s per device"
            mfu = f" ({scalars['mfu']:.1%} of its peak)" if "mfu" in scalars else ""
            parts.append(each + mfu)
        elif self._flops.reason is not None:
            parts.append(f"FLOPs unknown: {self._flops.reason}")
        parts.append(f"{report.data_wait_share:.0%} waiting for data")
        parts.append(f"{scalars['memory_mb']:,.0f} MB")
        if len(report.ranks) > 1 and report.lag_s > _WORTH_TELLING * report.step_s:
            parts.append(
                f"slowest is rank {report.slowest_rank}, {report.lag_s:.3g} s per step behind"
            )
        return ", ".join(parts)


def _peak_of_run(runner: RunView) -> float | None:
    name = getattr(getattr(torch, runner.device.type, None), "get_device_name", None)
    if name is None:
        return None
    wrappers = named_wrappers(runner.optim_wrapper).values()
    is_half = any(map(computes_in_half, wrappers)) or any(
        parameter.dtype in (torch.float16, torch.bfloat16)
        for parameter in runner.model.parameters()
    )
    if is_half:
        return peak_of(name(runner.device), "half")
    return peak_of(name(runner.device), "tf32" if uses_tf32() else "single")


def _memory(device: torch.device) -> float:
    """Return the most memory in use so far, in bytes: the device's, on the CPU the process's."""
    measure = getattr(getattr(torch, device.type, None), "max_memory_allocated", None)
    if measure is not None:
        return float(measure(device))
    if sys.platform == "win32":
        return 0.0
    import resource  # noqa: PLC0415 - not on Windows

    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)
