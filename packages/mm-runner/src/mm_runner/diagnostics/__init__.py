"""Diagnostic hooks: they measure a run, or look for mistakes in it, and leave its results alone."""

from ._gradient_spike import GradientSpikeHook
from ._hook_times import HookTimesHook
from ._host_sync import HostSyncHook
from ._profiler import NPUProfilerHook, ProfilerHook
from ._throughput import ThroughputHook

__all__ = [
    "GradientSpikeHook",
    "HookTimesHook",
    "HostSyncHook",
    "NPUProfilerHook",
    "ProfilerHook",
    "ThroughputHook",
]
