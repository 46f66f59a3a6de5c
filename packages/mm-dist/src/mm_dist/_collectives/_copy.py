"""Copy tensors from rank to rank."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mm_dist._collectives._nested import flatten, rebuild
from mm_dist._collectives._signature import (
    check_call,
    compare_signatures,
    describe_tensor,
    read_signature,
)
from mm_dist._collectives._state import GroupState, check_member, group_state
from mm_dist._collectives._wire import as_bytes, note_change, place_on_wire, write_back
from mm_dist._process_group import is_distributed

_Shapes = Sequence[tuple[int, ...]]


def all_gather(data: Any, group: Any = None, *, uneven: bool = True) -> list[Any]:
    """Collect every rank's tensor on all ranks; gradients do not flow through it.

    Args:
        data: A tensor of any dtype and device, or nested dicts, lists and tuples of tensors,
            which travel together. Structure and dtypes agree on all ranks.
        group: Ranks that take part, of which this one must be a member. Defaults to all.
        uneven: Whether the shapes may differ between ranks, as those of a last batch do; a rank
            can have no element at all. ``False`` saves the exchange of shapes for a tensor, and
            is a promise: some backends end the process where it is broken.

    Returns:
        One tensor per rank, or one structure of tensors, in rank order, on the device of
        ``data``. Without a process group ``[data]``.

    Raises:
        ArgumentTypeError: If ``data`` holds something else than dense tensors.
        CollectiveError: If ranks differ in what they must agree on; raised on all of them. Not
            compared for a tensor with ``uneven=False``, unless ``MM_DIST_DEBUG=1``.
        ConfigError: If this rank is not in the group.

    Example:
        >>> all_gather(torch.ones(1))
        [tensor([1.])]
    """
    tensors = flatten(data, "all_gather")
    if not is_distributed():
        return [data]
    return _Gathering("all_gather()", data, tensors, group, uneven=uneven).run(None)


def gather(data: Any, dst: int = 0, group: Any = None, *, uneven: bool = True) -> list[Any]:
    """Collect every rank's tensor on one rank; gradients do not flow through it.

    Args:
        data: As for ``all_gather``.
        dst: The rank that receives, counted among all ranks and not within ``group``.
        group: Ranks that take part, of which this one must be a member. Defaults to all.
        uneven: As for ``all_gather``.

    Returns:
        On ``dst`` as ``all_gather``; elsewhere an empty list.

    Raises:
        ArgumentTypeError: If ``data`` holds something else than dense tensors.
        CollectiveError: As for ``all_gather``.
        ConfigError: If this rank or ``dst`` is not in the group.

    Example:
        >>> gather(torch.ones(1))
        [tensor([1.])]
    """
    tensors = flatten(data, "gather")
    if not is_distributed():
        return [data]
    check_member("dst", dst, group_state(group))
    return _Gathering(f"gather(dst={dst})", data, tensors, group, uneven=uneven).run(dst)


def broadcast(data: Any, src: int = 0, group: Any = None) -> None:
    """Copy one rank's tensor into that of every other rank, in place.

    Args:
        data: A tensor of the same shape and dtype on all ranks, or nested dicts, lists and tuples
            of such tensors, which travel together.
        src: The rank that sends, counted among all ranks and not within ``group``.
        group: Ranks that take part, of which this one must be a member. Defaults to all.

    Raises:
        ArgumentTypeError: If ``data`` holds something else than dense tensors.
        CollectiveError: If ranks differ in what they must agree on, as far as that is compared:
            for nested data, and with ``MM_DIST_DEBUG=1``. Raised on all ranks.
        ConfigError: If this rank or ``src`` is not in the group.

    Example:
        >>> broadcast(torch.ones(1))
    """
    tensors = flatten(data, "broadcast")
    if not is_distributed():
        return
    state, call = group_state(group), f"broadcast(src={src})"
    check_member("src", src, state)
    if not isinstance(data, Tensor):
        compare_signatures(call, read_signature(tensors), group)
    elif state.is_checked:
        check_call(f"{call} of {describe_tensor(data)}", group)
    packed = _pack(list(tensors.values()), group, state)
    if packed.numel() > 0:  # gloo of older torch crashes
        dist.broadcast(packed, src=src, group=group)
    if dist.get_rank() != src:
        shapes = [tuple(tensor.shape) for tensor in tensors.values()]
        received = _unpack(packed, list(tensors.values()), shapes)
        for tensor, values in zip(tensors.values(), received, strict=True):
            write_back(tensor, values)
            note_change(tensor)


class _Gathering:
    """One gathering of tensors, which travel as bytes of one length."""

    def __init__(
        self, call: str, data: Any, tensors: dict[str, Tensor], group: Any, *, uneven: bool
    ) -> None:
        self._data, self._group = data, group
        self._tensors = list(tensors.values())
        self._state = group_state(group)
        self._shapes = self._agree_on_shapes(call, tensors, uneven=uneven)

    def _agree_on_shapes(
        self, call: str, tensors: dict[str, Tensor], *, uneven: bool
    ) -> list[_Shapes]:
        own = read_signature(tensors)
        if isinstance(self._data, Tensor) and not uneven:
            if self._state.is_checked:
                check_call(f"{call} of {describe_tensor(self._data)}", self._group)
            signatures = [own] * self._state.world_size
        else:
            if self._state.is_checked:
                check_call(call, self._group)
            signatures = compare_signatures(call, own, self._group, are_shapes_equal=not uneven)
        return [[shape for _, _, shape in each] for each in signatures]

    def run(self, dst: int | None) -> list[Any]:
        """Return one structure per rank; nothing where this rank does not receive."""
        packed = _pack(self._tensors, self._group, self._state)
        sizes = [_count_bytes(self._tensors, shapes) for shapes in self._shapes]
        padded = torch.cat([packed, packed.new_empty(max(sizes) - packed.numel())])
        is_receiver = dst is None or dist.get_rank() == dst
        received = [torch.empty_like(padded) for _ in sizes] if is_receiver else []
        if padded.numel() == 0:  # gloo of older torch crashes
            pass
        elif dst is None:
            dist.all_gather(received, padded, group=self._group)
        else:
            into = received if is_receiver else None
            dist.gather(padded, into, dst=dst, group=self._group)
        return [
            rebuild(self._data, iter(_unpack(row, self._tensors, shapes)))
            for row, shapes in zip(received, self._shapes, strict=False)
        ]


def _pack(tensors: list[Tensor], group: Any, state: GroupState) -> Tensor:
    """Return the bytes of tensors, where they travel; every backend can copy bytes."""
    placed = [as_bytes(place_on_wire(tensor, group, state)) for tensor in tensors]
    if len(placed) == 1:
        return placed[0]
    return torch.cat(placed) if placed else torch.empty(0, dtype=torch.uint8)


def _count_bytes(tensors: list[Tensor], shapes: _Shapes) -> int:
    pairs = zip(tensors, shapes, strict=True)
    return sum(torch.Size(shape).numel() * tensor.element_size() for tensor, shape in pairs)


def _unpack(row: Tensor, tensors: list[Tensor], shapes: _Shapes) -> list[Tensor]:
    unpacked = []
    for tensor, shape in zip(tensors, shapes, strict=True):
        size = torch.Size(shape).numel() * tensor.element_size()
        # A copy, because the bytes of another dtype must begin at a multiple of its size.
        own, row = row[:size].clone(), row[size:]
        unpacked.append(own.view(tensor.dtype).reshape(shape).to(tensor.device))
    return unpacked
