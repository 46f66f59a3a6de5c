"""A bool of the device on its way to the host, read later without draining the device."""

from typing import Any

import torch
from torch import Tensor


class HostFlag:
    """Copy a 0-d bool tensor to the host in the background.

    Args:
        flag: 0-d, bool, on any device; not changed afterwards.
    """

    def __init__(self, flag: Tensor) -> None:
        # A device-to-host copy that does not block goes to pinned memory, so the host runs on.
        self._copy = flag.to("cpu", non_blocking=True)
        self._arrival = _mark_stream(flag.device)

    def read(self) -> bool:
        """Return the value, waiting at most until the device has reached the copy."""
        if self._arrival is not None:
            self._arrival.synchronize()
            self._arrival = None
        return bool(self._copy.tolist())  # host memory: nothing more to wait for


def _mark_stream(device: torch.device) -> Any:
    """Record an event behind the copy; ``None`` where a copy has arrived when it returns."""
    if device.type == "cpu":
        return None
    module: Any = getattr(torch, device.type)
    if hasattr(module, "current_stream") and hasattr(module, "Event"):
        event = module.Event()
        event.record(module.current_stream(device))
        return event
    return _Drain(module)  # MPS before its events were public, and backends without streams


class _Drain:
    """Stands in for an event on a device that has none."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def synchronize(self) -> None:
        self._module.synchronize()
