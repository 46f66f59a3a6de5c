"""Copy nested tensors, or tensors of different shapes, as one sequence of bytes per rank."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mm_dist._collectives._nested import flatten, rebuild
from mm_dist._collectives._objects import all_gather_object
from mm_dist._collectives._signature import Signature, raise_difference, read_signature
from mm_dist._collectives._state import group_state
from mm_dist._collectives._wire import as_bytes, place_on_wire, write_back

_Shapes = Sequence[tuple[int, ...]]


def gather_nested(
    call: str, data: Any, receiver: int | None, group: Any, *, uneven: bool
) -> list[Any]:
    """Collect nested tensors.

    Args:
        call: The collective and its arguments, for the message.
        data: Nested dicts, lists and tuples of tensors, or a tensor.
        receiver: Number within the group of the only rank that receives. Defaults to all.
        group: Ranks that take part. Defaults to all.
        uneven: Whether the shapes may differ between ranks.

    Returns:
        One structure per rank; an empty list where this rank does not receive.

    Raises:
        CollectiveError: If the ranks' structures or dtypes differ, or the shapes where they must
            not.
    """
    state = group_state(group)
    tensors = list(flatten(data, call).values())
    shapes = _agree(call, data, group, uneven=uneven)
    packed = _pack(tensors, group)
    sizes = [_count_bytes(tensors, of_rank) for of_rank in shapes]
    padded = torch.cat([packed, packed.new_empty(max(sizes) - packed.numel())])
    is_receiver = receiver in (None, state.index)
    received = [torch.empty_like(padded) for _ in sizes] if is_receiver else []
    if padded.numel() == 0:  # gloo of older torch crashes
        pass
    elif receiver is None:
        dist.all_gather(received, padded, group=group)
    else:
        dst = state.ranks[receiver]
        dist.gather(padded, received if is_receiver else None, dst=dst, group=group)
    return [
        rebuild(data, iter(_unpack(row, tensors, of_rank)))
        for row, of_rank in zip(received, shapes, strict=False)
    ]


def broadcast_nested(data: Any, src: int, group: Any) -> None:
    """Copy one rank's nested tensors into those of the others, in place.

    Raises:
        CollectiveError: If the ranks' structures, dtypes or shapes differ.
    """
    call = f"broadcast(src={src})"
    tensors = list(flatten(data, call).values())
    shapes = _agree(call, data, group, uneven=False)
    packed = _pack(tensors, group)
    if packed.numel() > 0:
        dist.broadcast(packed, src=src, group=group)
    if dist.get_rank() != src:
        for tensor, received in zip(tensors, _unpack(packed, tensors, shapes[0]), strict=True):
            write_back(tensor, received)


def _agree(call: str, data: Any, group: Any, *, uneven: bool) -> list[_Shapes]:
    """Return the shapes of every rank's tensors, after a comparison of all the rest."""
    own = read_signature(flatten(data, call))
    signatures: list[Signature] = all_gather_object(own, group)
    if uneven:
        compared = [tuple((path, dtype) for path, dtype, _ in rank) for rank in signatures]
        is_same = len(set(compared)) == 1
    else:
        is_same = len(set(signatures)) == 1
    if not is_same:
        raise_difference(call, signatures, group_state(group).ranks)
    return [[shape for _, _, shape in rank] for rank in signatures]


def _pack(tensors: list[Tensor], group: Any) -> Tensor:
    state = group_state(group)
    placed = [as_bytes(place_on_wire(tensor, group, state)) for tensor in tensors]
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
