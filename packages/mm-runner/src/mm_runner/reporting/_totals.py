"""What is known of all values of a scalar, in an epoch or ever, without keeping them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["EPOCH", "GLOBAL", "Total", "TotalledWindow"]

EPOCH, GLOBAL = "epoch", "global"

# Values that are kept until somebody asks. Log lines do so much sooner, as a rule.
_MOST_PENDING = 1024
# Devices that cannot compute in float64, at least some of them.
_WITHOUT_FLOAT64 = ("mps", "npu", "mlu", "hpu", "xpu")


@dataclass
class Total:
    """Number, sum, least and greatest of values that are not kept.

    What is not a number makes the sum so, and is neither the least nor the greatest: comparing with
    it gives whatever the order of the values does.
    """

    num: float = 0.0
    sum: float = 0.0
    least: float = float("inf")
    greatest: float = float("-inf")

    def add(self, values: Sequence[float]) -> None:
        """Take in values."""
        if values:
            known = [value for value in values if not math.isnan(value)]
            least, greatest = min(known, default=math.inf), max(known, default=-math.inf)
            self.merge(Total(len(values), sum(values), least, greatest))

    def merge(self, other: Total) -> None:
        """Take in what is known of others."""
        self.num += other.num
        self.sum += other.sum
        self.least = min(self.least, other.least)
        self.greatest = max(self.greatest, other.greatest)

    def as_list(self) -> list[float]:
        """Return what :class:`Total` is made of."""
        return [self.num, self.sum, self.least, self.greatest]


class TotalledWindow(deque[Any]):
    """The newest values of a scalar, and totals of all.

    Nothing is read as values are appended: those since the totals were asked for last are kept. If
    nobody asks, their sum, least and greatest are computed on the device now and then, and memory
    stays bounded.

    Args:
        maxlen: How many of the newest values to keep.
        kinds: Which totals are wanted: :data:`EPOCH`, :data:`GLOBAL`, or both.
    """

    def __init__(self, maxlen: int, kinds: Sequence[str]) -> None:
        super().__init__(maxlen=maxlen)
        self.totals = {kind: Total() for kind in kinds}
        self.pending: list[Any] = []  # numbers and tensors of one element
        # Of those before them, by device: how many, and a tensor of sum, least and greatest.
        self.condensed: dict[torch.device, tuple[int, Tensor]] = {}

    def append(self, value: Any) -> None:
        """Add the newest value; it must not be appended in another way."""
        super().append(value)
        self.pending.append(value)
        if len(self.pending) >= _MOST_PENDING:
            self._condense()

    def clear(self) -> None:
        """Forget the values; the totals of what came before go on."""
        super().clear()
        self.pending.clear()
        self.condensed.clear()

    def unread(self) -> list[Any]:
        """Return what has to be read for :meth:`settle`: numbers and tensors of one element."""
        return list(self.pending)

    def settle(self, values: Sequence[float]) -> None:
        """Take the values of :meth:`unread`, as numbers, into the totals.

        What was condensed is read here, in its own precision: that is once in many steps.
        """
        condensed = [Total(num, *parts.tolist()) for num, parts in self.condensed.values()]
        for total in self.totals.values():
            total.add(values)
            for one in condensed:
                total.merge(one)
        self.pending.clear()
        self.condensed.clear()

    def _condense(self) -> None:
        alike: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        numbers = [value for value in self.pending if not isinstance(value, Tensor)]
        for value in self.pending:
            if isinstance(value, Tensor):
                alike.setdefault((value.device, value.dtype), []).append(value.reshape(()))
        for total in self.totals.values():
            total.add(numbers)
        self.pending.clear()
        for (device, _), tensors in alike.items():
            self._add_condensed(device, torch.stack(tensors).to(_precision_of_sums(device.type)))

    def _add_condensed(self, device: torch.device, values: Tensor) -> None:
        """Condense, together with what was before on the same device: there is one for each."""
        num, before = self.condensed.get(device, (0, values.new_empty(0)))
        is_nan = values.isnan()
        parts = [
            torch.cat([before[:1], values]).sum(),
            torch.cat([before[1:2], values.masked_fill(is_nan, math.inf)]).min(),
            torch.cat([before[2:], values.masked_fill(is_nan, -math.inf)]).max(),
        ]
        self.condensed[device] = (num + len(values), torch.stack(parts))


def _precision_of_sums(device_type: str) -> torch.dtype:
    """Return the dtype of sums over a whole run; in float32 small values would be lost in them."""
    return torch.float32 if device_type in _WITHOUT_FLOAT64 else torch.float64
