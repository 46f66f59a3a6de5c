"""How long this process works by itself, without waiting for the others."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import nn

__all__ = ["OwnTime"]


class OwnTime:
    """Times the forward of one step in each interval.

    Ranks wait for each other in backward, so that whole steps take all of them equally long. In
    the forward of replicated models none waits: that tells which one is slow. On a device it is
    timed by events, which are read when they have long passed.

    Args:
        model: The wrapped model; its own forward is timed, outside of what is compiled.
        device: Of the model.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        event: Any = getattr(getattr(torch, device.type, None), "Event", None)
        self._event = event if device.type != "cpu" else None
        self._is_armed = False
        self._marks: list[Any] = []
        self._handles = [
            model.register_forward_pre_hook(self._begin),
            model.register_forward_hook(self._end),
        ]

    def arm(self) -> None:
        """Time the next forward."""
        self._is_armed = True
        self._marks = []

    def read_s(self) -> float:
        """Return the seconds of the forward timed last, 0 if that is not known yet."""
        if len(self._marks) < 2:
            return 0.0
        begin, end = self._marks
        if self._event is None:
            return float(end - begin)
        return float(begin.elapsed_time(end)) / 1e3 if end.query() else 0.0

    def remove(self) -> None:
        """Take the hooks off the model."""
        for handle in self._handles:
            handle.remove()

    def _begin(self, *_: Any) -> None:
        if self._is_armed and not self._marks:
            self._marks.append(self._now())

    def _end(self, *_: Any) -> None:
        if self._is_armed and len(self._marks) == 1:
            self._marks.append(self._now())
            self._is_armed = False

    def _now(self) -> Any:
        if self._event is None:
            return time.perf_counter()
        mark = self._event(enable_timing=True)
        mark.record()
        return mark
