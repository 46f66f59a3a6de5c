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
        # Numbers and tensors of one element, and of those before them: how many, sum, least,
        # greatest.
        self.pending: list[Any] = []
        self.condensed: list[tuple[int, list[Tensor]]] = []

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
        return [*self.pending, *(one for _, parts in self.condensed for one in parts)]

    def settle(self, values: Sequence[float]) -> None:
        """Take the values of :meth:`unread`, as numbers, into the totals."""
        num_pending = len(self.pending)
        for total in self.totals.values():
            total.add(values[:num_pending])
            for index, (num, _) in enumerate(self.condensed):
                first = num_pending + 3 * index
                total.merge(Total(num, *values[first : first + 3]))
        self.pending.clear()
        self.condensed.clear()

    def _condense(self) -> None:
        by_device: dict[torch.device, list[Tensor]] = {}
        numbers = [value for value in self.pending if not isinstance(value, Tensor)]
        for value in self.pending:
            if isinstance(value, Tensor):
                by_device.setdefault(value.device, []).append(value.reshape(()).float())
        for total in self.totals.values():
            total.add(numbers)
        self.pending.clear()
        for tensors in by_device.values():
            stacked = torch.stack(tensors)
            is_nan = stacked.isnan()
            least = stacked.masked_fill(is_nan, math.inf).min()
            greatest = stacked.masked_fill(is_nan, -math.inf).max()
            self._add_condensed(len(tensors), [stacked.sum(), least, greatest])

    def _add_condensed(self, num: int, parts: list[Tensor]) -> None:
        """Add to what was condensed on the same device, so that there is one for each."""
        for index, (num_before, before) in enumerate(self.condensed):
            if before[0].device == parts[0].device:
                merged = [
                    before[0] + parts[0],
                    torch.minimum(before[1], parts[1]),
                    torch.maximum(before[2], parts[2]),
                ]
                self.condensed[index] = (num_before + num, merged)
                return
        self.condensed.append((num, parts))
