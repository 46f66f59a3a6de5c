"""Profiles of steps on an Ascend NPU."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from mm_runner.errors import ConfigError
from mm_runner.hooks._arguments import check_integer

from ._profiler import ProfilerHook

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

__all__ = ["NPUProfilerHook"]


class NPUProfilerHook(ProfilerHook):
    """Profiles some training steps on an NPU, for Ascend's MindStudio Insight and TensorBoard.

    It records with ``torch_npu``'s profiler, on the first process. :class:`ProfilerHook` does so
    too where the run is on an NPU, and has more options.

    Args:
        begin: Training steps before the first that is profiled. Defaults to 0.
        end: The last that is profiled, counted from 1. Defaults to 1.
        result_path: Folder that is written; one that is not absolute lies in the current folder.
            Defaults to ``"cann_profiling"``.
        exit_after_profiling: End the program, on all processes, after the last of these steps,
            without a checkpoint. Defaults to ``True``.
        use_e2e_profiler: Record what the host does as well. Defaults to ``False``.
        ge_profiling_to_std_out: Set ``GE_PROFILING_TO_STD_OUT``, unless it is set: CANN's graph
            engine reports on standard output. Defaults to ``False``.

    Raises:
        ConfigError: If ``begin`` and ``end`` are no steps in this order; when the training begins,
            if it has fewer steps, or there is no NPU.

    Example:
        >>> hook = NPUProfilerHook(begin=10, end=15)  # or dict(type="NPUProfilerHook", ...)
    """

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
        self._steps = 0

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
        self._steps = 0
        super().before_train(runner)

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        super().after_train_iter(runner, batch_idx, data_batch, outputs)
        self._steps += 1
        if self._steps == self.profile_times and self.exit_after_profiling:
            runner.logger.info(
                f"NPUProfilerHook: step {runner.iter + 1} was the last to profile; the program "
                "ends. exit_after_profiling=False goes on."
            )
            raise SystemExit(0)

    @override
    def _device_type(self, runner: RunView) -> str:
        return "npu"
