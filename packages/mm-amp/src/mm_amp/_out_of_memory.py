"""Recognize that memory ran out, on any device, and give back what can be given back."""

import gc
from typing import Any

import torch

# In messages of torch (CUDA, MPS, XPU, its CPU allocator on Linux and Windows), torch_npu, cuBLAS.
_MESSAGES = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` says that memory ran out: of the device, or of the host."""
    if isinstance(error, MemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    if type(error).__name__ == "OutOfMemoryError":  # torch.cuda's, torch's, and those of backends
        return True
    text = str(error)
    return any(message in text for message in _MESSAGES)


def free_memory(device: torch.device) -> None:
    """Free what only reference cycles keep, and the cache of the device's allocator."""
    gc.collect()
    module: Any = getattr(torch, device.type, None)
    empty_cache = getattr(module, "empty_cache", None)
    if empty_cache is not None:
        empty_cache()
