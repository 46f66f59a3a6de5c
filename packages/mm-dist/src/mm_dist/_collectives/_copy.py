"""Copy tensors from rank to rank."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mm_dist._collectives._state import GroupState, check_member, group_state
from mm_dist._collectives._tensors import (
    compare_calls,
    flatten,
    place,
    read_signature,
    rebuild,
    write_back,
)
from mm_dist._state import is_distributed

_Shapes = Sequence[tuple[int, ...]]


def all_gather(data: Any, group: Any = None) -> list[Any]:
    """Collect every rank's tensor on all ranks; gradients do not flow through it.

    Args:
        data: A tensor of any dtype and device, or nested dicts, lists and tuples of tensors,
            which travel together. Structure and dtypes agree on all ranks; shapes may differ, as
            those of a last batch do, and a rank can have no element at all.
        group: Ranks that take part, of which this one must be a member. Defaults to all.

    Returns:
        One tensor per rank, or one structure of tensors, in rank order, on the device of
        ``data``. Without a process group ``[data]``.

    Raises:
        ArgumentTypeError: If ``data`` holds something else than dense tensors.
        CollectiveError: If ranks differ in what they must agree on; raised on all of them.
        ConfigError: If this rank is not in the group.

    Example:
        >>> all_gather(torch.ones(1))
        [tensor([1.])]
    """
    return _gather("all_gather", data, group, dst=None)


def gather(data: Any, dst: int = 0, group: Any = None) -> list[Any]:
    """Collect every rank's tensor on one rank; gradients do not flow through it.

    Args:
        data: As for ``all_gather``.
        dst: The rank that receives, counted among all ranks and not within ``group``.
        group: Ranks that take part, of which this one must be a member. Defaults to all.

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
    return _gather("gather", data, group, dst=dst)


def broadcast(data: Any, src: int = 0, group: Any = None) -> None:
    """Copy one rank's tensor into that of every other rank, in place.

    Args:
        data: A tensor of the same shape and dtype on all ranks, or nested dicts, lists and tuples
            of such tensors, which travel together.
        src: The rank that sends, counted among all ranks and not within ``group``.
        group: Ranks that take part, of which this one must be a member. Defaults to all.

    Raises:
        ArgumentTypeError: If ``data`` holds something else than dense tensors.
        CollectiveError: If ranks differ in what they must agree on, with ``MM_DIST_DEBUG=1``;
            raised on all of them.
        ConfigError: If this rank or ``src`` is not in the group.
    """
    tensors = flatten(data, "broadcast")
    if not is_distributed():
        return
    state, call = group_state(group), f"broadcast(src={src})"
    check_member("src", src, state)
    if state.is_checked:
        compare_calls(call, read_signature(tensors), group)
    packed = _pack(list(tensors.values()), group, state)
    if packed.numel() > 0:  # gloo of older torch crashes
        dist.broadcast(packed, src=src, group=group)
    if dist.get_rank() != src:
        shapes = [tuple(tensor.shape) for tensor in tensors.values()]
        received = _unpack(packed, list(tensors.values()), shapes)
        for tensor, values in zip(tensors.values(), received, strict=True):
            write_back(tensor, values)


def _gather(function: str, data: Any, group: Any, *, dst: int | None) -> list[Any]:
    """Gather tensors as bytes of one length, on all ranks or on ``dst``."""
    tensors = flatten(data, function)
    if not is_distributed():
        return [data]
    state = group_state(group)
    if dst is not None:
        check_member("dst", dst, state)
    call = f"{function}()" if dst is None else f"{function}(dst={dst})"
    signatures = compare_calls(call, read_signature(tensors), group, are_shapes_equal=False)
    shapes = [[shape for _, _, shape in each] for each in signatures]
    parts = list(tensors.values())
    packed = _pack(parts, group, state)
    sizes = [part.element_size() for part in parts]
    longest = max(
        sum(torch.Size(shape).numel() * size for shape, size in zip(each, sizes, strict=True))
        for each in shapes
    )
    padded = torch.cat([packed, packed.new_empty(longest - packed.numel())])
    is_receiver = dst is None or dist.get_rank() == dst
    received = [torch.empty_like(padded) for _ in shapes] if is_receiver else []
    if longest == 0:  # gloo of older torch crashes
        pass
    elif dst is None:
        dist.all_gather(received, padded, group=group)
    else:
        dist.gather(padded, received if is_receiver else None, dst=dst, group=group)
    return [
        rebuild(data, iter(_unpack(row, parts, each)))
        for row, each in zip(received, shapes, strict=False)
    ]


def _pack(tensors: list[Tensor], group: Any, state: GroupState) -> Tensor:
    """Return the bytes of tensors, placed for communication; every backend can copy bytes."""
    placed = [_as_bytes(place(tensor, group, state)) for tensor in tensors]
    if len(placed) == 1:
        return placed[0]
    return torch.cat(placed) if placed else torch.empty(0, dtype=torch.uint8)


def _as_bytes(data: Tensor) -> Tensor:
    # Not reshape: it keeps the stride of a tensor of one element, which then has no bytes' view.
    return data.as_strided((data.numel(),), (1,)).view(torch.uint8)


def _unpack(row: Tensor, tensors: list[Tensor], shapes: _Shapes) -> list[Tensor]:
    unpacked = []
    for tensor, shape in zip(tensors, shapes, strict=True):
        size = torch.Size(shape).numel() * tensor.element_size()
        # A copy, because the bytes of another dtype must begin at a multiple of its size.
        own, row = row[:size].clone(), row[size:]
        unpacked.append(own.view(tensor.dtype).reshape(shape).to(tensor.device))
    return unpacked
