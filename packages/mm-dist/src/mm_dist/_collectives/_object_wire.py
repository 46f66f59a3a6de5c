"""Pass numbers, texts and bytes between the ranks of a group."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mm_dist._collectives._side_group import objects_group
from mm_dist._collectives._state import group_state
from mm_dist._collectives._wire import place_on_wire, write_back

_TEXT_BYTES = 2048
# Of our own, so that a user's pending receive from the same rank does not take the message.
_TAG = 0x6D6D


class ObjectWire:
    """The members of a group, who are numbered from 0 here, and their connection.

    Args:
        group: Ranks that take part. Defaults to all.
    """

    def __init__(self, group: Any = None) -> None:
        self._group = objects_group(group)
        self._state = group_state(self._group)
        self.ranks = self._state.ranks
        self.index = self._state.index

    def gather_numbers(self, numbers: Sequence[int]) -> list[list[int]]:
        """Return every rank's numbers, of which all ranks give equally many, on all ranks."""
        own = self._place(torch.tensor(numbers, dtype=torch.int64))
        received = [torch.empty_like(own) for _ in self.ranks]
        dist.all_gather(received, own, group=self._group)
        return [row.tolist() for row in received]

    def gather_maxima(self, numbers: Sequence[int]) -> list[int]:
        """Return the greatest of all ranks' numbers, place by place, on all ranks."""
        placed = self._place(torch.tensor(numbers, dtype=torch.int64))
        dist.all_reduce(placed, dist.ReduceOp.MAX, group=self._group)
        return [int(number) for number in placed.tolist()]

    def gather_texts(self, text: str) -> list[str]:
        """Return every rank's text, cut at 2048 bytes of UTF-8, on all ranks."""
        encoded = text.encode()[:_TEXT_BYTES].ljust(_TEXT_BYTES, b"\0")
        rows = self.gather_equal(bytearray(encoded))
        return [bytes(row).rstrip(b"\0").decode(errors="ignore") for row in rows]

    def gather_equal(self, data: bytearray) -> list[bytearray]:
        """Return every rank's bytes, of which all ranks give equally many, on all ranks."""
        view = _share_memory(data)
        own = self._place(view)
        rows = [bytearray(len(data)) for _ in self.ranks]
        views = [_share_memory(row) for row in rows]
        is_moved = own.data_ptr() != view.data_ptr()
        received = [torch.empty_like(own) for _ in rows] if is_moved else views
        dist.all_gather(received, own, group=self._group)
        for row_view, tensor in zip(views, received, strict=True):
            write_back(row_view, tensor)
        return rows

    def broadcast(self, data: bytearray, source: int) -> None:
        """Overwrite every rank's bytes, of which all ranks have equally many, by the source's."""
        view = _share_memory(data)
        placed = self._place(view)
        dist.broadcast(placed, src=self.ranks[source], group=self._group)
        write_back(view, placed)

    def send(self, data: bytearray, receiver: int) -> None:
        """Send bytes to one rank, which receives them."""
        placed = self._place(_share_memory(data))
        dist.send(placed, dst=self.ranks[receiver], group=self._group, tag=_TAG)

    def receive(self, size: int, source: int) -> bytearray:
        """Return bytes that one rank sends."""
        data = bytearray(size)
        view = _share_memory(data)
        placed = self._place(view)
        dist.recv(placed, src=self.ranks[source], group=self._group, tag=_TAG)
        write_back(view, placed)
        return data

    def _place(self, data: Tensor) -> Tensor:
        return place_on_wire(data, self._group, self._state)


def _share_memory(data: bytearray) -> Tensor:
    return torch.frombuffer(data, dtype=torch.uint8)
