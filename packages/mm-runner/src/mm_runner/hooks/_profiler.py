"""Traces training with torch's profiler."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from typing_extensions import override

from mm_runner._error_text import text_of
from mm_runner.errors import ConfigError, did_you_mean

from ._hook import Hook
from ._hook_calls import HookCalls

if TYPE_CHECKING:
    from torch.profiler import profile

    from mm_runner.run_view import RunView

__all__ = ["ProfilerHook"]

# Allocations and releases that are remembered: enough for some hundred steps, and some 100 MB.
_HISTORY = 100_000
# Of each key, the least value.
_SCHEDULE = {"wait": 0, "warmup": 0, "active": 1, "repeat": 0, "skip_first": 0}
_READY = {"log_trace": ("sort_by", "row_limit"), "tb_trace": ("dir_name", "worker_name")}
# What may stand in the name of a column for the device that is profiled.
_DEVICES = ("cuda", "xpu", "privateuse1")


class ProfilerHook(Hook):
    """Profiles the first epochs or steps, and writes a trace for chrome://tracing or Perfetto.

    Without ``on_trace_ready`` the trace is written as ``trace_rank<r>.json`` into the run's log
    directory (``json_trace_path`` names another file); with ``repeat`` in ``schedule`` one for each
    turn. What each hook of the run does at a stage is in it by name, as
    ``LoggerHook.after_train_iter``.

    Where torch fails to make or write a trace, that is logged as an error, and training goes on
    without profiling; an error of a function of yours as ``on_trace_ready`` ends it.

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
        if not isinstance(profile_times, int) or profile_times < 1:
            raise ConfigError(
                f"ProfilerHook.profile_times: a positive number, got {profile_times!r}."
            )
        if not activity_with_cpu and not activity_with_cuda:
            raise ConfigError("ProfilerHook: both activities are False; switch one on.")
        _check_schedule(schedule)
        if isinstance(on_trace_ready, Mapping):
            kind = on_trace_ready.get("type")
            if kind not in _READY:
                raise ConfigError(
                    f"ProfilerHook.on_trace_ready.type: {' or '.join(map(repr, _READY))} is needed,"
                    f" got {kind!r}.{did_you_mean(str(kind), _READY)}"
                )
            _check_keys("on_trace_ready", on_trace_ready, ("type", *_READY[kind]))
            _check_table(on_trace_ready)
        elif on_trace_ready is not None and not callable(on_trace_ready):
            raise ConfigError(
                f"ProfilerHook.on_trace_ready: a function or a dict, got {on_trace_ready!r}."
            )
        self.by_epoch, self.profile_times = by_epoch, profile_times
        self.schedule = dict(schedule or {})
        self.on_trace_ready = on_trace_ready
        self.json_trace_path = json_trace_path
        self.ranks = ranks
        self.memory_history = memory_history
        self._activities = [
            name
            for name, is_on in (("CPU", activity_with_cpu), ("CUDA", activity_with_cuda))
            if is_on
        ]
        self._options: dict[str, Any] = {
            "record_shapes": record_shapes,
            "profile_memory": profile_memory,
            "with_stack": with_stack,
            "with_flops": with_flops,
        }
        self._profiler: profile | None = None
        self._calls: HookCalls | None = None
        self._end_history: Callable[[], None] | None = None
        self._write_for_tensorboard: Callable[[Any], None] | None = None
        self._error_of_user: Exception | None = None
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
        self._write_for_tensorboard = self._writer(runner, device_type)
        self._profiler = profiler.profile(
            activities=[
                getattr(profiler.ProfilerActivity, _activity(name, device_type))
                for name in self._activities
            ],
            schedule=profiler.schedule(**self._schedule()) if self.schedule else None,
            on_trace_ready=lambda done: self._write(runner, done),
            **self._options,
        )
        self._profiler.start()
        self._calls = HookCalls(runner, _named)
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
        if self._profiler is not None and self.by_epoch:
            self._count(runner)

    @override
    def after_train(self, runner: RunView) -> None:
        self._guard(runner, self._stop)  # training may have ended before its time

    @override
    def clean_up(self, runner: RunView) -> None:
        self._is_writing = False  # training failed, or was stopped: of no use, and torch may fail
        with suppress(Exception):
            self._stop()
        self._end_calls()
        end, self._end_history = self._end_history, None
        if end is not None:
            end()

    def _count(self, runner: RunView) -> None:
        self._left -= 1
        if self._left == 0:
            self._guard(runner, self._stop)

    def _guard(self, runner: RunView, act: Callable[[], Any]) -> None:
        """Let torch's profiler act: where that fails, a trace is lost, and no training."""
        try:
            act()
        except BaseException as error:
            profiler, self._profiler = self._profiler, None
            with suppress(Exception):
                _abandon(profiler)
            self._end_calls()
            if not isinstance(error, Exception) or error is self._error_of_user:
                raise
            runner.logger.error(  # noqa: TRY400 - where in torch is of no use
                f"{type(self).__name__}: the trace could not be made or written: "
                f"{type(error).__name__}: {text_of(error)} Training goes on without it, and is "
                "profiled no longer."
            )

    def _stop(self) -> None:
        if self._profiler is not None:
            profiler, self._profiler = self._profiler, None
            profiler.stop()
            self._end_calls()

    def _end_calls(self) -> None:
        calls, self._calls = self._calls, None
        if calls is not None:
            calls.end()

    def _schedule(self) -> dict[str, int]:
        return {"wait": 0, "warmup": 0, "active": 1, **self.schedule}

    def _write(self, runner: RunView, done: profile) -> None:
        ready = self.on_trace_ready
        if not self._is_writing:
            return
        if ready is None:
            path = self._path(runner)
            path.parent.mkdir(parents=True, exist_ok=True)
            done.export_chrome_trace(str(path))
            runner.logger.info(f"ProfilerHook: the trace is in {path}.")
        elif not isinstance(ready, Mapping):
            try:
                ready(done)
            except Exception as error:
                self._error_of_user = error
                raise
        elif ready["type"] == "log_trace":
            table = done.key_averages().table(
                sort_by=ready.get("sort_by", "self_cpu_time_total"),
                row_limit=ready.get("row_limit", 100),
            )
            runner.logger.info(f"ProfilerHook:\n{table}")
        elif self._write_for_tensorboard is not None:
            self._write_for_tensorboard(done)

    def _writer(self, runner: RunView, device_type: str) -> Callable[[Any], None] | None:
        """Return what writes for TensorBoard, if that was asked for.

        That of torch_npu has to be made before anything is recorded: it says where to.
        """
        ready = self.on_trace_ready
        kind = ready["type"] if isinstance(ready, Mapping) else None
        if device_type == "npu" and kind == "log_trace":
            raise ConfigError(
                f"{type(self).__name__}.on_trace_ready.type: 'log_trace' was given, and "
                "torch_npu's profiler makes no tables. Give 'tb_trace', whose folder holds "
                "operator_details.csv, or leave on_trace_ready out."
            )
        if not isinstance(ready, Mapping) or kind != "tb_trace":
            return None
        directory = ready.get("dir_name") or str(Path(runner.log_dir) / "tf_tracing_logs")
        make: Any = _profiler_of(device_type).tensorboard_trace_handler
        writer: Callable[[Any], None] = make(directory, ready.get("worker_name"))
        return writer

    def _device_type(self, runner: RunView) -> str:
        return str(runner.device.type)

    def _path(self, runner: RunView) -> Path:
        name = self.json_trace_path or str(Path(runner.log_dir) / "trace_rank{rank}.json")
        path = Path(name.replace("{rank}", str(runner.rank)))
        self._written += 1
        return path if self._written == 1 else path.with_stem(f"{path.stem}_{self._written}")


def _named(
    hook: Hook,
    stage: str,
    act: Callable[..., Any],
    arguments: tuple[Any, ...],
    named: Mapping[str, Any],
) -> Any:
    """Let a hook act within a range of its name, which the trace shows."""
    from torch.profiler import record_function  # noqa: PLC0415 - few runs are profiled

    with record_function(f"{type(hook).__name__}.{stage}"):
        return act(*arguments, **named)


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


def _abandon(profiler: Any) -> None:
    """Give up a profiler that has failed.

    Torch's is not told to stop: its state has moved on before the failure, and where nothing
    records any more, stopping crashes the process.
    """
    from torch.profiler import profile  # noqa: PLC0415

    if profiler is not None and not isinstance(profiler, profile):
        profiler.stop()
    elif torch._C._autograd._profiler_enabled():  # noqa: SLF001 - there is no public name
        torch._C._autograd._disable_profiler()  # noqa: SLF001


def _profiler_of(device_type: str) -> Any:
    if device_type == "npu":  # torch's own does not see what an NPU does
        import mm_npu  # noqa: PLC0415 - few runs are profiled

        return mm_npu.npu_profiler()
    from torch import profiler  # noqa: PLC0415

    return profiler


def _activity(name: str, device_type: str) -> str:
    """Return what a device's profiler calls the host or the device."""
    return device_type.upper() if name == "CUDA" and device_type in ("npu", "xpu") else name


def _check_schedule(schedule: Any) -> None:
    if schedule is None:
        return
    if not isinstance(schedule, Mapping):
        raise ConfigError(f"ProfilerHook.schedule: a dict or None is needed, got {schedule!r}.")
    _check_keys("schedule", schedule, _SCHEDULE)
    for key, value in schedule.items():
        if not _is_integer(value) or value < _SCHEDULE[key]:
            raise ConfigError(
                f"ProfilerHook.schedule.{key}: an integer of at least {_SCHEDULE[key]} is needed, "
                f"in steps, got {value!r}."
            )


def _check_table(ready: Mapping[str, Any]) -> None:
    row_limit = ready.get("row_limit")
    if row_limit is not None and not _is_integer(row_limit):
        raise ConfigError(
            f"ProfilerHook.on_trace_ready.row_limit: an integer is needed, -1 for all rows, got "
            f"{row_limit!r}."
        )
    if ready.get("sort_by") is not None:
        _check_column(ready["sort_by"])


def _check_column(name: Any) -> None:
    """Check the name of a column now: torch finds out when the profile, and the run, has ended."""
    from torch.autograd.profiler_util import FunctionEventAvg  # noqa: PLC0415 - few profile

    known = [
        column
        for column in dir(FunctionEventAvg())
        if column in ("count", "flops", "key")
        or column.endswith(("time", "_total", "_memory_usage"))
    ]
    general = str(name)
    for device in _DEVICES:
        general = general.replace(device, "device")
    if not isinstance(name, str) or (name not in known and general not in known):
        raise ConfigError(
            f"ProfilerHook.on_trace_ready.sort_by: {name!r} is no column of torch's table; there "
            f"are {', '.join(known)}.{did_you_mean(str(name), known)}"
        )


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_keys(where: str, given: Mapping[str, Any], known: Iterable[str]) -> None:
    for key in given:
        if key not in known:
            raise ConfigError(
                f"ProfilerHook.{where}.{key}: unknown key; known are {', '.join(known)}."
                f"{did_you_mean(str(key), known)}"
            )
