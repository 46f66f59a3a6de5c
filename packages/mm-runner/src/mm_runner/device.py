"""Which devices there are."""

from __future__ import annotations

from typing import Any

import torch

from mm_dist import available_device_type
from mm_npu import is_npu_available

__all__ = [
    "get_device",
    "get_max_cuda_memory",
    "is_cuda_available",
    "is_mlu_available",
    "is_mps_available",
    "is_musa_available",
    "is_npu_available",
]


def get_device() -> str:
    """Return the type of the device that a run takes, such as ``"cuda"``."""
    return available_device_type()


def get_max_cuda_memory(device: torch.device | None = None) -> int:
    """Return the peak memory of tensors since the last call, in MiB, and reset it."""
    peak = torch.cuda.max_memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    return peak // (1 << 20)


def _is_available(holder: Any, name: str) -> bool:
    module = getattr(holder, name, None)
    return module is not None and bool(module.is_available())


def is_cuda_available() -> bool:
    """Return whether there is a CUDA device, or one of ROCm."""
    return torch.cuda.is_available()


def is_mlu_available() -> bool:
    """Return whether ``torch_mlu`` is imported and has a device."""
    return _is_available(torch, "mlu")


def is_mps_available() -> bool:
    """Return whether there is a GPU of Apple."""
    return _is_available(torch.backends, "mps")


def is_musa_available() -> bool:
    """Return whether ``torch_musa`` is imported and has a device."""
    return _is_available(torch, "musa")
