"""Hooks: what a run does besides training steps, at the stages it passes."""

from ._checkpoint import CheckpointHook
from ._compile_report import CompileReportHook
from ._hook import STAGES, Hook
from ._hook_list import HookList, build_hooks
from ._iter_timer import IterTimerHook
from ._logger import LoggerHook
from ._param_scheduler import ParamSchedulerHook
from ._priority import priority_of
from ._runtime_info import RuntimeInfoHook
from ._sampler_seed import DistSamplerSeedHook

__all__ = [
    "STAGES",
    "CheckpointHook",
    "CompileReportHook",
    "DistSamplerSeedHook",
    "Hook",
    "HookList",
    "IterTimerHook",
    "LoggerHook",
    "ParamSchedulerHook",
    "RuntimeInfoHook",
    "build_hooks",
    "priority_of",
]
