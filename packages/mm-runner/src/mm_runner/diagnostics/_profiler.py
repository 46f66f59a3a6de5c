"""Traces of training steps, by torch's profiler."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from mm_runner.errors import ConfigError
from mm_runner.hooks import Hook
from mm_runner.hooks._arguments import check_integer

if TYPE_CHECKING:
    from torch.profiler import profile

    from mm_runner.run_view import RunView

__all__ = ["ProfilerHook"]

# Keys of on_trace_ready by its type.
_READY = {
    "log_trace": {"type", "sort_by", "row_limit"},
    "tb_trace": {"type", "dir_name", "worker_name"},
}


class ProfilerHook(Hook):
    """Profiles the first epochs or steps, and writes a trace for chrome://tracing or Perfetto.

    Without ``on_trace_ready`` the trace is written as ``trace_rank0.json`` into the run's log
    directory; with ``repeat`` in ``schedule`` one for each turn. The first process is profiled.

    Args:
        by_epoch: Whether ``profile_times`` counts epochs, else steps. Defaults to ``True``.
        profile_times: How many of them are profiled. Defaults to 1.
        activity_with_cpu: Whether to trace the host. Defaults to ``True``.
        activity_with_cuda: Whether to trace the device. Defaults to ``False``.
        schedule: Arguments of ``torch.profiler.schedule``: ``wait``, ``warmup``, ``active``,
            ``repeat``, ``skip_first``, in steps. Without it all is traced.
        on_trace_ready: A function of the profiler; or ``dict(type='log_trace', sort_by=...,
            row_limit=...)``, which logs a table of the ``row_limit`` (100) highest by
            ``"self_cpu_time_total"``, ``"cuda_time_total"``, ``"count"`` and so on; or
            ``dict(type='tb_trace', dir_name=...)``, which writes for TensorBoard.
        record_shapes: Record the shapes of inputs. Defaults to ``False``.
        profile_memory: Record allocations. Defaults to ``False``.
        with_stack: Record where in the source an operation was called. Defaults to ``False``.
        with_flops: Estimate operations' work. Defaults to ``False``.
        json_trace_path: The trace's file.

    Raises:
        ConfigError: If an argument does not fit.
    """

    priority = "VERY_LOW"

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
        ready = on_trace_ready
        known = _READY.get(str(ready.get("type"))) if isinstance(ready, Mapping) else None
        if isinstance(ready, Mapping) and (known is None or not known.issuperset(ready)):
            allowed = " or ".join(str(sorted(keys)) for keys in _READY.values())
            raise ConfigError(
                f"ProfilerHook.on_trace_ready: type='log_trace' or 'tb_trace' with keys {allowed} "
                f"is needed, got {dict(ready)!r}."
            )
        if not (ready is None or callable(ready) or isinstance(ready, Mapping)):
            raise ConfigError(f"ProfilerHook.on_trace_ready: a function or a dict, got {ready!r}.")
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
        self._left = self._written = 0

    @override
    def before_train(self, runner: RunView) -> None:
        if runner.rank != 0:
            return
        end = runner.max_epochs if self.by_epoch else runner.max_iters
        if self.profile_times > end:
            raise ConfigError(
                f"ProfilerHook.profile_times: {self.profile_times} was given, and the run has "
                f"{end} {'epochs' if self.by_epoch else 'steps'}."
            )
        self._left, self._written = self.profile_times, 0
        self._profiler = self._build(runner, self._device_type(runner))
        self._profiler.start()

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        if self._profiler is None:
            return
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
        write = self._writer(runner, profiler)
        return profiler.profile(
            activities=[getattr(profiler.ProfilerActivity, name) for name in names],
            schedule=schedule,
            on_trace_ready=lambda done: None if self._profiler is None else write(done),
            **self._options,
        )

    def _writer(self, runner: RunView, profiler: Any) -> Callable[[Any], None]:
        ready = self.on_trace_ready
        if ready is not None and not isinstance(ready, Mapping):
            return ready
        if ready is not None and ready["type"] == "tb_trace":
            # That of torch_npu has to be made before anything is recorded: it says where to.
            directory = ready.get("dir_name") or str(Path(runner.log_dir) / "tf_tracing_logs")
            handler: Callable[[Any], None] = profiler.tensorboard_trace_handler(
                directory, ready.get("worker_name")
            )
            return handler

        def log_table(done: profile) -> None:
            assert isinstance(ready, Mapping)
            table = done.key_averages().table(
                sort_by=ready.get("sort_by", "self_cpu_time_total"),
                row_limit=ready.get("row_limit", 100),
            )
            runner.logger.info(f"ProfilerHook:\n{table}")

        def export(done: profile) -> None:
            path = Path(self.json_trace_path or Path(runner.log_dir) / "trace_rank0.json")
            self._written += 1
            if self._written > 1:
                path = path.with_stem(f"{path.stem}_{self._written}")
            path.parent.mkdir(parents=True, exist_ok=True)
            done.export_chrome_trace(str(path))
            runner.logger.info(f"ProfilerHook: the trace is in {path}.")

        return export if ready is None else log_table

    def _device_type(self, runner: RunView) -> str:
        return str(runner.device.type)
