"""What time it is where the model runs, told without waiting for the device."""

from itertools import chain
from time import perf_counter
from typing import Any

import torch
from torch import nn


class HostClock:
    """The host's clock: right for the CPU, and for devices whose events keep no time."""

    name = "host clock"

    def mark(self) -> float:
        """Note this moment."""
        return perf_counter()

    def seconds_between(self, start: float, end: float) -> float | None:
        """Return the time from one mark to another."""
        return end - start


class DeviceClock:
    """Events in the device's queue, read once the device has come past them.

    Host time between two steps says little there: the host runs ahead of the device until a queue
    is full. An event costs some microseconds and makes nobody wait.

    Args:
        event: The device's event class.
    """

    name = "device events"

    def __init__(self, event: Any) -> None:
        self._event = event

    def mark(self) -> Any:
        """Note the moment at which the device will have done what it was given so far."""
        event = self._event(enable_timing=True)
        event.record()
        return event

    def seconds_between(self, start: Any, end: Any) -> float | None:
        """Return the time from one mark to another; None as long as the device is not there."""
        return float(start.elapsed_time(end)) / 1e3 if end.query() else None


def clock_for(module: nn.Module) -> HostClock | DeviceClock:
    """Choose the clock of the device that holds the module's first parameter or buffer."""
    tensor = next(chain(module.parameters(), module.buffers()), None)
    device_type = "cpu" if tensor is None else tensor.device.type
    event = getattr(getattr(torch, device_type, None), "Event", None)
    return HostClock() if device_type == "cpu" or event is None else DeviceClock(event)
