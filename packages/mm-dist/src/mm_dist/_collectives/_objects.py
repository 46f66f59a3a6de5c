"""Exchange picklable objects; only among ranks that trust each other, as pickle runs code."""

import ctypes
import pickle
from typing import Any

import torch
from torch import Tensor

from mm_dist._collectives._copy import all_gather, broadcast, gather
from mm_dist._errors import ArgumentTypeError
from mm_dist._process_group import is_distributed


def all_gather_object(data: Any, group: Any = None) -> list[Any]:
    """Collect every rank's object on all ranks.

    Args:
        data: Anything that can be pickled; ranks may hold different kinds.
        group: Ranks that take part. Defaults to all.

    Returns:
        One object per rank, in rank order. Without a process group ``[data]``.

    Example:
        >>> all_gather_object("loss")
        ['loss']
    """
    if not is_distributed():
        return [data]
    padded, sizes = _pad_to_longest(_pickle_to_tensor(data), group)
    return _unpickle_all(all_gather(padded, group), sizes)


def gather_object(data: Any, dst: int = 0, group: Any = None) -> list[Any] | None:
    """Collect every rank's object on one rank.

    Args:
        data: Anything that can be pickled; ranks may hold different kinds.
        dst: The rank that receives, counted among all ranks and not within ``group``.
        group: Ranks that take part. Defaults to all.

    Returns:
        On ``dst`` as ``all_gather_object``; elsewhere ``None``.

    Example:
        >>> gather_object("loss")
        ['loss']
    """
    if not is_distributed():
        return [data]
    padded, sizes = _pad_to_longest(_pickle_to_tensor(data), group)
    received = gather(padded, dst, group)
    return _unpickle_all(received, sizes) if received else None


def broadcast_object_list(data: list[Any], src: int = 0, group: Any = None) -> None:
    """Replace the items of every rank's list by those of one rank, in place.

    Args:
        data: The list; what it holds on ranks other than ``src`` is dropped.
        src: The rank that sends, counted among all ranks and not within ``group``.
        group: Ranks that take part. Defaults to all.

    Raises:
        ArgumentTypeError: If ``data`` is no list.

    Example:
        >>> broadcast_object_list(["loss"])
    """
    if not isinstance(data, list):
        raise ArgumentTypeError(f"broadcast_object_list takes a list, got {type(data)}.")
    if not is_distributed():
        return
    is_source = torch.distributed.get_rank() == src
    pickled = _pickle_to_tensor(data) if is_source else torch.empty(0, dtype=torch.uint8)
    size = torch.tensor(pickled.numel())
    broadcast(size, src, group)
    if not is_source:
        pickled = torch.empty(int(size), dtype=torch.uint8)
    broadcast(pickled, src, group)
    if not is_source:
        data[:] = _unpickle(pickled, int(size))


def _pickle_to_tensor(data: Any) -> Tensor:
    # A bytearray, because torch warns of memory that cannot be written to.
    pickled = bytearray(pickle.dumps(data, protocol=pickle.HIGHEST_PROTOCOL))
    return torch.frombuffer(pickled, dtype=torch.uint8)


def _unpickle(pickled: Tensor, size: int) -> Any:
    # Tensor.numpy() would need NumPy, and Tensor.tolist() makes an int of each byte.
    return pickle.loads(ctypes.string_at(pickled.data_ptr(), size))  # noqa: S301 (own ranks)


def _unpickle_all(received: list[Tensor], sizes: list[int]) -> list[Any]:
    return [_unpickle(pickled, size) for pickled, size in zip(received, sizes, strict=True)]


def _pad_to_longest(pickled: Tensor, group: Any) -> tuple[Tensor, list[int]]:
    """Return the tensor at the length of the longest rank's, and every rank's true length."""
    sizes = [int(size) for size in all_gather(torch.tensor(pickled.numel()), group)]
    padding = pickled.new_zeros(max(sizes) - pickled.numel())
    return torch.cat([pickled, padding]), sizes
