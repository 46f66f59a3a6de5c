"""Which devices there are, under MMEngine's names."""

from typing import Any

import torch

from mm_dist import available_device_type as get_device
from mm_npu import is_npu_available

__all__ = [
    "get_device",
    "get_max_cuda_memory",
    "is_cuda_available",
    "is_mlu_available",
    "is_mps_available",
    "is_npu_available",
]
is_cuda_available = torch.cuda.is_available


def get_max_cuda_memory(device: Any = None) -> int:
    """Return the peak memory of tensors since the last call, in MiB, and reset it."""
    peak = torch.cuda.max_memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    return peak // (1 << 20)


def is_mlu_available() -> bool:
    """Return whether ``torch_mlu`` is imported and has a device."""
    mlu = getattr(torch, "mlu", None)
    return mlu is not None and bool(mlu.is_available())


def is_mps_available() -> bool:
    """Return whether there is a GPU of Apple."""
    return torch.backends.mps.is_available()
