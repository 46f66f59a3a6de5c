"""The profiler: torch's own. What the device does, the CPU does here."""

import torch.profiler
from torch.profiler import ProfilerAction, schedule, tensorboard_trace_handler

from torch_npu._calls import record


class ProfilerActivity:
    CPU = "CPU"
    NPU = "NPU"


class profile(torch.profiler.profile):  # noqa: N801 - torch's name
    def __init__(self, *, activities=(ProfilerActivity.CPU, ProfilerActivity.NPU), **options):
        unknown = set(activities) - {"CPU", "NPU"}
        if unknown:
            raise TypeError(f"activities of torch.profiler mean nothing to an NPU: {unknown}")
        record("profiler.profile", *activities)
        super().__init__(activities=[torch.profiler.ProfilerActivity.CPU], **options)


__all__ = ["ProfilerAction", "ProfilerActivity", "profile", "schedule", "tensorboard_trace_handler"]
