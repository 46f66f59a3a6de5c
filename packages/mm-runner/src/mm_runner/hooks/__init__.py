"""Hooks: what a run does besides training steps, at the stages it passes.

Those that measure a run, such as profilers, are in :mod:`mm_runner.diagnostics`.
"""

from typing import TYPE_CHECKING

from mm_runner._lazy import importing

from ._checkpoint import CheckpointHook
from ._default_hooks import (
    DistSamplerSeedHook,
    IterTimerHook,
    ParamSchedulerHook,
    RuntimeInfoHook,
)
from ._freezing import FreezeHook
from ._hook import STAGES, Hook
from ._hook_list import HookList, Priority, build_hooks, get_priority, priority_of
from ._logger import LoggerHook
from ._small_hooks import CompileReportHook, EmptyCacheHook, PrepareTTAHook, SyncBuffersHook

if TYPE_CHECKING:
    from ._ema import EMAHook
    from ._stopping import CheckInvalidLossHook, EarlyStoppingHook, TimeLimitHook

__all__ = [
    "STAGES",
    "CheckInvalidLossHook",
    "CheckpointHook",
    "CompileReportHook",
    "DistSamplerSeedHook",
    "EMAHook",
    "EarlyStoppingHook",
    "EmptyCacheHook",
    "FreezeHook",
    "Hook",
    "HookList",
    "IterTimerHook",
    "LoggerHook",
    "ParamSchedulerHook",
    "PrepareTTAHook",
    "Priority",
    "RuntimeInfoHook",
    "SyncBuffersHook",
    "TimeLimitHook",
    "build_hooks",
    "get_priority",
    "priority_of",
]

if not TYPE_CHECKING:  # which would take any name then
    __getattr__, __dir__ = importing(__name__, "_stopping", "_ema")
