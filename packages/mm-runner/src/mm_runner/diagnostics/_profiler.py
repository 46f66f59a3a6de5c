"""Traces of training steps, by torch's profiler."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from typing_extensions import override

from mm_runner._error_text import text_of
from mm_runner.errors import ConfigError, did_you_mean
from mm_runner.hooks import Hook
from mm_runner.hooks._arguments import check_integer

from ._hook_times import renew_hooks

if TYPE_CHECKING:
    from torch.profiler import profile

    from mm_runner.run_view import RunView

__all__ = ["ProfilerHook"]

# Allocations and releases that are remembered: enough for some hundred steps, and some 100 MB.
_HISTORY = 100_000
# Keys of on_trace_ready by its type.
_READY = {"log_trace": ("sort_by", "row_limit"), "tb_trace": ("dir_name", "worker_name")}


class ProfilerHook(Hook):
    """Profiles the first epochs or steps, and writes a trace for chrome://tracing or Perfetto.

    Without ``on_trace_ready`` the trace is written as ``trace_rank<r>.json`` into the run's log
    directory (``json_trace_path`` names another file); with ``repeat`` in ``schedule`` one for each
    turn. What each hook of the run does at a stage is in it by name, as
    ``LoggerHook.after_train_iter``.

    Where torch fails to make or write a trace, that is logged as an error, and training continues
    without profiling. With a function of yours as ``on_trace_ready`` such an error ends it.

    Args:
        by_epoch: Whether ``profile_times`` counts epochs, else steps. Defaults to ``True``.
        profile_times: How many of them are profiled. Defaults to 1.
        activity_with_cpu: Whether to trace the host. Defaults to ``True``.
        activity_with_cuda: Whether to trace the GPU. Defaults to ``False``.
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
        json_trace_path: The trace's file; ``{rank}`` in it stands for the rank, which is needed
            where several are profiled.
        ranks: Which ranks profile, ``None`` for all. Defaults to the first.
        memory_history: Record until the training ends which line of code allocated what on the
            device (torch 2.3). If it runs out of memory the crash bundle has a file of it for
            https://pytorch.org/memory_viz. Defaults to ``False``.

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
        ranks: Sequence[int] | None = (0,),
        memory_history: bool = False,
    ) -> None:
        check_integer("ProfilerHook.profile_times", profile_times, least=1)
        if not activity_with_cpu and not activity_with_cuda:
            raise ConfigError("ProfilerHook: both activities are False; switch one on.")
        _check_ready(on_trace_ready)
        self.by_epoch, self.profile_times = by_epoch, profile_times
        self.schedule = {"wait": 0, "warmup": 0, "active": 1, **schedule} if schedule else None
        _check_schedule(self.schedule)
        self.on_trace_ready = on_trace_ready
        self.json_trace_path = json_trace_path
        self.ranks = ranks
        self.memory_history = memory_history
        self._activities = ["CPU"] * activity_with_cpu + ["CUDA"] * activity_with_cuda
        self._options: dict[str, Any] = {
            "record_shapes": record_shapes,
            "profile_memory": profile_memory,
            "with_stack": with_stack,
            "with_flops": with_flops,
        }
        self._profiler: profile | None = None
        self._end_history: Callable[[], None] | None = None
        self._is_writing = False
        self._left = 0
        self._written = 0

    @override
    def before_train(self, runner: RunView) -> None:
        if self.ranks is not None and runner.rank not in self.ranks:
            return
        end = runner.max_epochs if self.by_epoch else runner.max_iters
        if self.profile_times > end:
            raise ConfigError(
                f"ProfilerHook.profile_times: {self.profile_times} was given, and the run has "
                f"{end} {'epochs' if self.by_epoch else 'steps'}."
            )
        device_type = self._device_type(runner)
        profiler = _profiler_of(device_type)
        self._left, self._written, self._is_writing = self.profile_times, 0, True
        self._profiler = profiler.profile(
            activities=[
                getattr(profiler.ProfilerActivity, _activity(name, device_type))
                for name in self._activities
            ],
            schedule=profiler.schedule(**self.schedule) if self.schedule else None,
            on_trace_ready=self._writer(runner, profiler),
            **self._options,
        )
        self._profiler.start()
        runner.hooks_list.wrap(_named)
        if self.memory_history:
            self._end_history = _record_history(runner)

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        if self._profiler is None:
            return
        with warnings.catch_warnings():
            # Each turn of a schedule has a file of its own, so it may forget the one before.
            warnings.filterwarnings("ignore", ".*clears events at the end of each cycle")
            self._guard(runner, self._profiler.step)
        if not self.by_epoch:
            self._count(runner)

    @override
    def after_train_epoch(self, runner: RunView) -> None:
        if self.by_epoch:
            self._count(runner)

    @override
    def after_train(self, runner: RunView) -> None:
        self._stop(runner)  # training may have ended early

    @override
    def clean_up(self, runner: RunView) -> None:
        profiler, self._profiler, self._is_writing = self._profiler, None, False
        if profiler is not None:  # training failed: its trace is not written
            with suppress(Exception):
                profiler.stop()
        runner.hooks_list.unwrap(_named)
        end, self._end_history = self._end_history, None
        if end is not None:
            end()

    def _count(self, runner: RunView) -> None:
        self._left -= 1
        if self._left == 0:
            self._stop(runner)

    def _stop(self, runner: RunView) -> None:
        if self._profiler is not None:
            self._guard(runner, self._profiler.stop)
            self._profiler = None
            runner.hooks_list.unwrap(_named)
            renew_hooks(runner)

    def _guard(self, runner: RunView, act: Callable[[], object]) -> None:
        """Call a method of torch's profiler; an error costs the trace, not the training."""
        try:
            act()
        except Exception as error:
            self._profiler = None
            runner.hooks_list.unwrap(_named)
            if callable(self.on_trace_ready):
                raise
            runner.logger.error(  # noqa: TRY400 - where in torch is of no use
                f"{type(self).__name__}: the trace could not be made or written: "
                f"{type(error).__name__}: {text_of(error)} Training continues without profiling."
            )

    def _writer(self, runner: RunView, profiler: Any) -> Callable[[Any], None]:
        ready = self.on_trace_ready
        write: Callable[[Any], None]
        if ready is None:
            write = partial(self._export, runner)
        elif not isinstance(ready, Mapping):
            write = ready
        elif ready["type"] == "log_trace":
            write = partial(_log_table, runner, ready)
        else:
            # That of torch_npu has to be made before anything is recorded: it says where to.
            directory = ready.get("dir_name") or str(Path(runner.log_dir) / "tf_tracing_logs")
            write = profiler.tensorboard_trace_handler(directory, ready.get("worker_name"))
        return lambda done: write(done) if self._is_writing else None

    def _export(self, runner: RunView, done: profile) -> None:
        name = self.json_trace_path or str(Path(runner.log_dir) / "trace_rank{rank}.json")
        path = Path(name.replace("{rank}", str(runner.rank)))
        self._written += 1
        if self._written > 1:
            path = path.with_stem(f"{path.stem}_{self._written}")
        path.parent.mkdir(parents=True, exist_ok=True)
        done.export_chrome_trace(str(path))
        runner.logger.info(f"ProfilerHook: the trace is in {path}.")

    def _device_type(self, runner: RunView) -> str:
        return str(runner.device.type)


def _log_table(runner: RunView, options: Mapping[str, Any], done: profile) -> None:
    table = done.key_averages().table(
        sort_by=options.get("sort_by", "self_cpu_time_total"),
        row_limit=options.get("row_limit", 100),
    )
    runner.logger.info(f"ProfilerHook:\n{table}")


def _named(hook: Hook, stage: str, act: Callable[..., Any]) -> Callable[..., Any]:
    """Let a hook act within a range of its name, which the trace shows."""
    from torch.profiler import record_function  # noqa: PLC0415 - few runs are profiled

    def named(*arguments: Any, **options: Any) -> Any:
        with record_function(f"{type(hook).__name__}.{stage}"):
            return act(*arguments, **options)

    return named


def _record_history(runner: RunView) -> Callable[[], None] | None:
    """Record what is allocated, and return what ends that; ``None`` where torch cannot."""
    memory = getattr(getattr(torch, runner.device.type, None), "memory", None)
    record = getattr(memory, "_record_memory_history", None)  # torch's documented name
    if record is None or not hasattr(torch, "get_default_device"):
        runner.logger.warning(
            f"ProfilerHook.memory_history was asked for; torch {torch.__version__} records none on "
            f"{runner.device.type}. It does from 2.3 on, on cuda."
        )
        return None
    record(max_entries=_HISTORY)
    return lambda: record(enabled=None)


def _profiler_of(device_type: str) -> Any:
    if device_type == "npu":  # torch's own does not see what an NPU does
        import mm_npu  # noqa: PLC0415 - few runs are profiled

        return mm_npu.npu_profiler()
    from torch import profiler  # noqa: PLC0415

    return profiler


def _activity(name: str, device_type: str) -> str:
    """Return what a device's profiler calls the host or the device."""
    return device_type.upper() if name == "CUDA" and device_type in ("npu", "xpu") else name


def _check_schedule(schedule: Mapping[str, int] | None) -> None:
    if schedule is not None:
        from torch.profiler import schedule as make  # noqa: PLC0415 - few runs are profiled

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch warns again where it is used
                make(**schedule)
        except (AssertionError, TypeError) as error:
            raise ConfigError(
                f"ProfilerHook.schedule: torch.profiler.schedule refuses {schedule!r}: {error}"
            ) from error


def _check_ready(ready: Any) -> None:
    if isinstance(ready, Mapping):
        kind = ready.get("type")
        if kind not in _READY:
            raise ConfigError(
                f"ProfilerHook.on_trace_ready.type: {' or '.join(map(repr, _READY))} is needed, "
                f"got {kind!r}.{did_you_mean(str(kind), _READY)}"
            )
        known = ("type", *_READY[kind])
        for key in ready:
            if key not in known:
                raise ConfigError(
                    f"ProfilerHook.on_trace_ready.{key}: unknown key; known are "
                    f"{', '.join(known)}.{did_you_mean(str(key), known)}"
                )
    elif ready is not None and not callable(ready):
        raise ConfigError(f"ProfilerHook.on_trace_ready: a function or a dict, got {ready!r}.")
