"""Copy tensors from rank to rank."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mm_dist._collectives._wire import pack_for_copy, place_on_wire, unpack_copy, write_back
from mm_dist._info import get_world_size
from mm_dist._process_group import is_distributed


def all_gather(data: Tensor, group: Any = None) -> list[Tensor]:
    """Collect every rank's tensor on all ranks.

    Args:
        data: Of the same shape and dtype on all ranks.
        group: Ranks that take part. Defaults to all.

    Returns:
        One tensor per rank, in rank order, on ``data.device``, without gradient. Without a
        process group ``[data]``.

    Example:
        >>> all_gather(torch.ones(1))
        [tensor([1.])]
    """
    if not is_distributed():
        return [data]
    packed = pack_for_copy(place_on_wire(data, group))
    received = [torch.empty_like(packed) for _ in range(get_world_size(group))]
    if packed.numel() > 0:  # Without elements on any rank; gloo of older torch crashes.
        dist.all_gather(received, packed, group=group)
    return [unpack_copy(tensor, data) for tensor in received]


def gather(data: Tensor, dst: int = 0, group: Any = None) -> list[Tensor]:
    """Collect every rank's tensor on one rank.

    Args:
        data: Of the same shape and dtype on all ranks.
        dst: The rank that receives, counted among all ranks and not within ``group``.
        group: Ranks that take part. Defaults to all.

    Returns:
        On ``dst`` as ``all_gather``; elsewhere an empty list.

    Example:
        >>> gather(torch.ones(1))
        [tensor([1.])]
    """
    if not is_distributed():
        return [data]
    packed = pack_for_copy(place_on_wire(data, group))
    is_receiver = dist.get_rank() == dst
    num_received = get_world_size(group) if is_receiver else 0
    received = [torch.empty_like(packed) for _ in range(num_received)]
    if packed.numel() > 0:
        dist.gather(packed, received if is_receiver else None, dst=dst, group=group)
    return [unpack_copy(tensor, data) for tensor in received]


def broadcast(data: Tensor, src: int = 0, group: Any = None) -> None:
    """Copy one rank's tensor into that of every other rank, in place.

    Args:
        data: Of the same shape and dtype on all ranks.
        src: The rank that sends, counted among all ranks and not within ``group``.
        group: Ranks that take part. Defaults to all.

    Example:
        >>> broadcast(torch.ones(1))
    """
    if not is_distributed():
        return
    packed = pack_for_copy(place_on_wire(data, group))
    if packed.numel() > 0:
        dist.broadcast(packed, src=src, group=group)
    write_back(data, unpack_copy(packed, data))
