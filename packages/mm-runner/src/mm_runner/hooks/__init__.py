"""Hooks: what a run does besides training steps, at the stages it passes.

Those that measure a run, such as profilers, are in :mod:`mm_runner.diagnostics`.
"""

from ._check_invalid_loss import CheckInvalidLossHook
from ._checkpoint import CheckpointHook
from ._compile_report import CompileReportHook
from ._early_stopping import EarlyStoppingHook
from ._ema import EMAHook
from ._empty_cache import EmptyCacheHook
from ._garbage_collection import GarbageCollectionHook
from ._hook import STAGES, Hook
from ._hook_list import HookList, build_hooks, priority_name, priority_of
from ._iter_timer import IterTimerHook
from ._logger import LoggerHook
from ._param_scheduler import ParamSchedulerHook
from ._prepare_tta import PrepareTTAHook
from ._runtime_info import RuntimeInfoHook
from ._sampler_seed import DistSamplerSeedHook
from ._sync_buffers import SyncBuffersHook
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
    "GarbageCollectionHook",
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
    "priority_name",
    "priority_of",
]
