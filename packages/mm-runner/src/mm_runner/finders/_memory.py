"""The memory of a device: whether it was too small, how much was used, and giving it back."""

from __future__ import annotations

import gc
import sys
from typing import Any

import torch

from mm_runner._out_of_memory import is_out_of_memory

__all__ = ["free_memory", "is_out_of_memory", "peak_bytes", "start_counting", "wait_for"]


def free_memory(device_type: str) -> None:
    """Give back what nobody uses any more."""
    compiler = sys.modules.get("torch._dynamo")
    if compiler is not None:
        compiler.reset()  # it keeps what it compiled, and the models in it
    gc.collect()
    empty = getattr(_module(device_type), "empty_cache", None)
    if empty is not None:
        empty()


def start_counting(device: torch.device) -> None:
    """Count :func:`peak_bytes` from what is used now."""
    reset = getattr(_module(device.type), "reset_peak_memory_stats", None)
    if reset is not None:
        reset(device)


def peak_bytes(device: torch.device) -> int | None:
    """Return the most that was used at a time: on the CPU by this process since it began.

    ``None`` where nobody knows.
    """
    measure = getattr(_module(device.type), "max_memory_allocated", None)
    if measure is not None and device.type != "cpu":
        return int(measure(device))
    if device.type != "cpu" or sys.platform == "win32":
        return None
    import resource  # noqa: PLC0415 - not on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)


def wait_for(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    wait = getattr(_module(device.type), "synchronize", None)
    if wait is not None:
        wait()


def _module(device_type: str) -> Any:
    return getattr(torch, device_type, None)
