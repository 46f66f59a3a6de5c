"""Hooks: what a run does besides training steps, at the stages it passes."""

from ._check_invalid_loss import CheckInvalidLossHook
from ._checkpoint import CheckpointHook
from ._compile_report import CompileReportHook
from ._early_stopping import EarlyStoppingHook
from ._ema import EMAHook
from ._empty_cache import EmptyCacheHook
from ._garbage_collection import GarbageCollectionHook
from ._hook import STAGES, Hook
from ._hook_list import HookList, build_hooks
from ._hook_times import HookTimesHook
from ._iter_timer import IterTimerHook
from ._logger import LoggerHook
from ._npu_profiler import NPUProfilerHook
from ._param_scheduler import ParamSchedulerHook
from ._prepare_tta import PrepareTTAHook
from ._priority import priority_name, priority_of
from ._profiler import ProfilerHook
from ._runtime_info import RuntimeInfoHook
from ._sampler_seed import DistSamplerSeedHook
from ._sync_buffers import SyncBuffersHook
from ._time_limit import TimeLimitHook
from .gradient_spike import GradientSpikeHook
from .host_sync import HostSyncHook
from .throughput import ThroughputHook

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
    "GradientSpikeHook",
    "Hook",
    "HookList",
    "HookTimesHook",
    "HostSyncHook",
    "IterTimerHook",
    "LoggerHook",
    "NPUProfilerHook",
    "ParamSchedulerHook",
    "PrepareTTAHook",
    "ProfilerHook",
    "RuntimeInfoHook",
    "SyncBuffersHook",
    "ThroughputHook",
    "TimeLimitHook",
    "build_hooks",
    "priority_name",
    "priority_of",
]
