"""Traces of training steps, by torch's profiler."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from typing_extensions import override

from mm_runner.errors import ConfigError
from mm_runner.hooks import Hook
from mm_runner.registry import check_integer, check_section

if TYPE_CHECKING:
    from torch.profiler import profile

    from mm_runner.run_view import RunView

# Keys of on_trace_ready, with the types of their values.
_READY = {
    "type": Literal["log_trace", "tb_trace"],
    **dict.fromkeys(("sort_by", "dir_name", "worker_name"), str),
    "row_limit": int,
}


class ProfilerHook(Hook):
    """Profile the first epochs or steps, and write a trace for chrome://tracing or Perfetto.

    Without ``on_trace_ready`` the trace is written as ``trace_rank0.json`` into the run's log
    directory; with ``repeat`` in ``schedule`` one for each turn. The first process is profiled.

    Args:
        by_epoch: Whether ``profile_times`` counts epochs, else steps. Defaults to ``True``.
        profile_times: How many of them are profiled. Defaults to 1.
        activity_with_cpu: Whether to trace the host. Defaults to ``True``.
        activity_with_cuda: Whether to trace the device. Defaults to ``False``.
        schedule: Arguments of ``torch.profiler.schedule``, in steps. Without it all is traced.
        on_trace_ready: A function of the profiler; or ``dict(type='log_trace', sort_by=...,
            row_limit=...)``, which logs a table; or ``dict(type='tb_trace', dir_name=...)``, which
            writes for TensorBoard.
        record_shapes: As for ``torch.profiler.profile``; so are the next three, all ``False``.
        profile_memory: Record allocations.
        with_stack: Record source lines.
        with_flops: Estimate FLOPs.
        json_trace_path: The trace's file.

    Raises:
        ConfigError: If an argument does not fit.
    """

    priority = "VERY_LOW"
    _device_type: str | None = None  # that of the run

    def __init__(
        self,
        *,
        by_epoch: bool = True,
        profile_times: int = 1,
        activity_with_cpu: bool = True,
        activity_with_cuda: bool = False,
        schedule: Mapping[str, int] | None = None,
        on_trace_ready: Callable[[Any], None] | Mapping[str, Any] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        json_trace_path: str | None = None,
    ) -> None:
        check_integer("ProfilerHook.profile_times", profile_times, least=1)
        if not activity_with_cpu and not activity_with_cuda:
            raise ConfigError("ProfilerHook: both activities are False; switch one on.")
        if isinstance(on_trace_ready, Mapping):
            check_section(on_trace_ready, "ProfilerHook.on_trace_ready", _READY)
        elif on_trace_ready is not None and not callable(on_trace_ready):
            raise ConfigError(
                "ProfilerHook.on_trace_ready: a function, or a dict with type='log_trace' or "
                f"'tb_trace' is needed, got {on_trace_ready!r}."
            )
        self.by_epoch, self.profile_times = by_epoch, profile_times
        self.schedule = {"wait": 0, "warmup": 0, "active": 1, **schedule} if schedule else None
        self.on_trace_ready = on_trace_ready
        self.json_trace_path = json_trace_path
        self._activities = ["CPU"] * activity_with_cpu + ["CUDA"] * activity_with_cuda
        self._options: dict[str, Any] = {
            "record_shapes": record_shapes,
            "profile_memory": profile_memory,
            "with_stack": with_stack,
            "with_flops": with_flops,
        }
        self._profiler: profile | None = None
        self._left = self._num_written = 0

    @override
    def before_train(self, runner: RunView) -> None:
        self._left, self._num_written = self.profile_times, 0
        if runner.rank == 0:
            self._profiler = self._build(runner, self._device_type or runner.device.type)
            self._profiler.start()

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        if self._profiler is not None:
            with warnings.catch_warnings():
                # Each turn of a schedule has a file of its own, so it may forget the one before.
                warnings.filterwarnings("ignore", ".*clears events at the end of each cycle")
                self._profiler.step()
        if not self.by_epoch:
            self._count()

    @override
    def after_train_epoch(self, runner: RunView) -> None:
        if self.by_epoch:
            self._count()

    @override
    def after_train(self, runner: RunView) -> None:
        self._left = 1  # training may have ended early
        self._count()

    @override
    def clean_up(self, runner: RunView) -> None:
        profiler, self._profiler = self._profiler, None
        if profiler is not None:  # training failed: its trace is not written
            with suppress(Exception):
                profiler.stop()

    def _count(self) -> None:
        self._left -= 1
        if self._left == 0 and self._profiler is not None:
            self._profiler.stop()
            self._profiler = None

    def _build(self, runner: RunView, device_type: str) -> Any:
        if device_type == "npu":  # torch's own does not see what an NPU does
            import mm_npu  # noqa: PLC0415 - few runs are profiled

            profiler: Any = mm_npu.npu_profiler()
        else:
            from torch import profiler  # noqa: PLC0415
        device = device_type.upper() if device_type in ("npu", "xpu") else "CUDA"
        names = [device if name == "CUDA" else name for name in self._activities]
        try:
            schedule = profiler.schedule(**self.schedule) if self.schedule else None
        except (AssertionError, TypeError) as error:
            raise ConfigError(
                f"ProfilerHook.schedule: torch.profiler.schedule refuses {self.schedule!r}: {error}"
            ) from error
        ready = self.on_trace_ready
        write: Callable[[Any], None] = partial(self._export, runner)
        if isinstance(ready, Mapping) and ready.get("type") == "tb_trace":
            # That of torch_npu has to be made before anything is recorded: it says where to.
            directory = ready.get("dir_name") or str(Path(runner.log_dir) / "tf_tracing_logs")
            write = profiler.tensorboard_trace_handler(directory, ready.get("worker_name"))
        elif ready is not None:
            write = partial(self._log_table, runner) if isinstance(ready, Mapping) else ready
        return profiler.profile(
            activities=[getattr(profiler.ProfilerActivity, name) for name in names],
            schedule=schedule,
            on_trace_ready=lambda done: None if self._profiler is None else write(done),
            **self._options,
        )

    def _export(self, runner: RunView, done: profile) -> None:
        path = Path(self.json_trace_path or Path(runner.log_dir) / "trace_rank0.json")
        self._num_written += 1
        if self._num_written > 1:
            path = path.with_stem(f"{path.stem}_{self._num_written}")
        path.parent.mkdir(parents=True, exist_ok=True)
        done.export_chrome_trace(str(path))
        runner.logger.info(f"ProfilerHook: the trace is in {path}.")

    def _log_table(self, runner: RunView, done: profile) -> None:
        options = {"sort_by": "self_cpu_time_total", "row_limit": 100, **self.on_trace_ready}  # type: ignore[dict-item]
        options.pop("type", None)
        runner.logger.info(f"ProfilerHook:\n{done.key_averages().table(**options)}")


class NPUProfilerHook(ProfilerHook):
    """Profile some training steps on an NPU, for Ascend's MindStudio Insight and TensorBoard.

    It records with ``torch_npu``'s profiler, on the first process.

    Args:
        begin: Training steps before the first that is profiled. Defaults to 0.
        end: The last that is profiled, counted from 1. Defaults to 1.
        result_path: Folder to write to. Defaults to ``"cann_profiling"``.
        exit_after_profiling: End the program, on all processes, after the last of these steps,
            without a checkpoint. Defaults to ``True``.
        use_e2e_profiler: Record what the host does as well. Defaults to ``False``.
        ge_profiling_to_std_out: Let CANN's graph engine report on standard output. Defaults to
            ``False``.

    Raises:
        ConfigError: If ``begin`` and ``end`` are no steps in this order; when the training begins,
            if there is no NPU.

    Example:
        >>> hook = NPUProfilerHook(begin=10, end=15)  # or dict(type="NPUProfilerHook", ...)
    """

    _device_type = "npu"

    def __init__(
        self,
        *,
        begin: int = 0,
        end: int = 1,
        result_path: str = "cann_profiling",
        exit_after_profiling: bool = True,
        use_e2e_profiler: bool = False,
        ge_profiling_to_std_out: bool = False,
    ) -> None:
        check_integer("NPUProfilerHook.begin", begin, least=0)
        check_integer("NPUProfilerHook.end", end, least=begin + 1)
        # torch_npu's first step of all is dearer than those after it: it warms up in the one
        # before, if there is one.
        warmup = min(begin, 1)
        super().__init__(
            by_epoch=False,
            profile_times=end,
            activity_with_cpu=use_e2e_profiler,
            activity_with_cuda=True,
            schedule={
                "skip_first": begin - warmup,
                "warmup": warmup,
                "active": end - begin,
                "repeat": 1,
            },
            on_trace_ready={"type": "tb_trace", "dir_name": result_path},
        )
        self.exit_after_profiling = exit_after_profiling
        self.ge_profiling_to_std_out = ge_profiling_to_std_out

    @override
    def before_train(self, runner: RunView) -> None:
        import mm_npu  # noqa: PLC0415 - few have an NPU

        reason = mm_npu.npu_unavailable_reason()
        if reason is not None:
            raise ConfigError(
                f"NPUProfilerHook was asked for, but {reason} ProfilerHook profiles other devices."
            )
        if self.ge_profiling_to_std_out:
            os.environ.setdefault("GE_PROFILING_TO_STD_OUT", "1")
        super().before_train(runner)

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        super().after_train_iter(runner, batch_idx, data_batch, outputs)
        if self._left == 0 and self.exit_after_profiling:
            runner.logger.info(
                f"NPUProfilerHook: step {runner.iter + 1} was the last to profile; the program "
                "ends. exit_after_profiling=False continues."
            )
            raise SystemExit(0)
