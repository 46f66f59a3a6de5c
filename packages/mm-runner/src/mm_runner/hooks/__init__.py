"""Hooks: what a run does besides training steps, at the stages it passes.

Those that measure a run, such as profilers, are in :mod:`mm_runner.diagnostics`.
"""

from ._checkpoint import CheckpointHook
from ._early_stopping import EarlyStoppingHook
from ._ema import EMAHook
from ._hook import STAGES, Hook
from ._hook_list import HookList, build_hooks, priority_of
from ._iter_timer import IterTimerHook
from ._logger import LoggerHook
from ._param_scheduler import ParamSchedulerHook
from ._runtime_info import RuntimeInfoHook
from ._small_hooks import (
    CheckInvalidLossHook,
    CompileReportHook,
    DistSamplerSeedHook,
    EmptyCacheHook,
    PrepareTTAHook,
    SyncBuffersHook,
)
from ._time_limit import TimeLimitHook

__all__ = [
    "STAGES",
    "CheckInvalidLossHook",
    "CheckpointHook",
    "CompileReportHook",
    "DistSamplerSeedHook",
    "EMAHook",
    "EarlyStoppingHook",
    "EmptyCacheHook",
    "Hook",
    "HookList",
    "IterTimerHook",
    "LoggerHook",
    "ParamSchedulerHook",
    "PrepareTTAHook",
    "RuntimeInfoHook",
    "SyncBuffersHook",
    "TimeLimitHook",
    "build_hooks",
    "priority_of",
]
