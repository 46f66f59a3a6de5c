"""Copy tensors from rank to rank."""

from hashlib import blake2b
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mm_dist._collectives._check import check_call, compare_calls, describe_tensor
from mm_dist._collectives._nested import flatten
from mm_dist._collectives._nested_copy import broadcast_nested, gather_nested
from mm_dist._collectives._object_wire import ObjectWire
from mm_dist._collectives._state import GroupState, check_member, group_state
from mm_dist._collectives._wire import (
    note_change,
    pack_for_copy,
    place_on_wire,
    unpack_copy,
    write_back,
)
from mm_dist._process_group import is_distributed


def all_gather(data: Any, group: Any = None, *, uneven: bool = True) -> list[Any]:
    """Collect every rank's tensor on all ranks; gradients do not flow through it.

    Args:
        data: A tensor of any dtype and device, or nested dicts, lists and tuples of tensors,
            which travel together. Structure and dtypes agree on all ranks.
        group: Ranks that take part, of which this one must be a member. Defaults to all.
        uneven: Whether the shapes may differ between ranks, as those of a last batch do; a rank
            can have no element at all. To find out costs one tiny collective. ``False`` saves it
            for a tensor, and is a promise: some backends end the process where it is broken.

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
    flatten(data, "all_gather")
    if not is_distributed():
        return [data]
    state = group_state(group)
    call = "all_gather()"
    if not _are_same(call, data, group, state, uneven=uneven):
        return gather_nested(call, data, None, group, uneven=uneven)
    packed, received = _make_room(data, group, state, state.world_size)
    if packed.numel() > 0:  # Without elements on any rank; gloo of older torch crashes.
        dist.all_gather(received, packed, group=group)
    return [unpack_copy(tensor, data) for tensor in received]


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
    flatten(data, "gather")
    if not is_distributed():
        return [data]
    state = group_state(group)
    receiver = check_member("dst", dst, state)
    call = f"gather(dst={dst})"
    if not _are_same(call, data, group, state, uneven=uneven):
        return gather_nested(call, data, receiver, group, uneven=uneven)
    is_receiver = state.index == receiver
    packed, received = _make_room(data, group, state, state.world_size if is_receiver else 0)
    if packed.numel() > 0:
        dist.gather(packed, received if is_receiver else None, dst=dst, group=group)
    return [unpack_copy(tensor, data) for tensor in received]


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
    flatten(data, "broadcast")
    if not is_distributed():
        return
    state = group_state(group)
    check_member("src", src, state)
    if not isinstance(data, Tensor):
        broadcast_nested(data, src, group)
        return
    if state.is_checked:
        check_call(f"broadcast(src={src})", data, group)
    packed = pack_for_copy(place_on_wire(data, group, state))
    if packed.numel() > 0:
        dist.broadcast(packed, src=src, group=group)
    if dist.get_rank() != src:
        write_back(data, unpack_copy(packed, data))
        note_change(data)


def _are_same(call: str, data: Any, group: Any, state: GroupState, *, uneven: bool) -> bool:
    """Return whether all ranks have a tensor of one shape, as far as this is to be found out."""
    is_tensor = isinstance(data, Tensor)
    if state.is_checked:
        compared = f"{call} of {describe_tensor(data)}" if is_tensor and not uneven else call
        compare_calls(ObjectWire(group), compared)
    if not uneven:
        return is_tensor
    kind = describe_tensor(data) if is_tensor else "nested"
    number = int.from_bytes(blake2b(kind.encode(), digest_size=7).digest(), "big")
    greatest, least = ObjectWire(group).gather_maxima([number, -number])
    return is_tensor and greatest == -least


def _make_room(
    data: Tensor, group: Any, state: GroupState, count: int
) -> tuple[Tensor, list[Tensor]]:
    """Return the tensor as it travels, and as many empty ones as will arrive."""
    packed = pack_for_copy(place_on_wire(data, group, state))
    return packed, [torch.empty_like(packed) for _ in range(count)]
