"""Exchange pickled objects among ranks that trust each other: unpickling runs code.

torch's own functions need NumPy, and leave the other ranks waiting if one cannot pickle.
"""

import io
import pickle
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mm_dist._backends import communication_device
from mm_dist._collectives._state import check_member, group_state
from mm_dist._errors import ArgumentTypeError, CollectiveError
from mm_dist._state import is_distributed


def all_gather_object(data: Any, group: Any = None) -> list[Any]:
    """Collect every rank's object on all ranks.

    Args:
        data: Anything that can be pickled; ranks may hold different kinds. Move tensors to the CPU
            first: they arrive on the device that they had.
        group: Ranks that take part. Defaults to all.

    Returns:
        One object per rank, in rank order; this rank's own is ``data`` itself. Without a process
        group ``[data]``.

    Raises:
        CollectiveError: If an object cannot be pickled; raised on all ranks.
        ConfigError: If this rank is not in the group.
    """
    if not is_distributed():
        return [data]
    rows = _gather_pickles("all_gather_object()", data, group)
    index = group_state(group).index
    return [data if i == index else pickle.loads(row) for i, row in enumerate(rows)]  # noqa: S301


def gather_object(data: Any, dst: int = 0, group: Any = None) -> list[Any] | None:
    """Collect every rank's object on one rank.

    Args:
        data: As for ``all_gather_object``.
        dst: The rank that receives, counted among all ranks and not within ``group``.
        group: Ranks that take part. Defaults to all.

    Returns:
        On ``dst`` as ``all_gather_object``; elsewhere ``None``.

    Raises:
        CollectiveError: If an object cannot be pickled; raised on all ranks.
        ConfigError: If this rank or ``dst`` is not in the group.
    """
    if not is_distributed():
        return [data]
    state = group_state(group)
    receiver = check_member("dst", dst, state)
    is_receiver = state.index == receiver
    sent = None if is_receiver else data
    rows = _gather_pickles(f"gather_object(dst={dst})", sent, group, dst)
    if not is_receiver:
        return None
    return [data if i == receiver else pickle.loads(row) for i, row in enumerate(rows)]  # noqa: S301


def broadcast_object_list(data: list[Any], src: int = 0, group: Any = None) -> None:
    """Replace the items of every rank's list by those of one rank, in place.

    Args:
        data: The list; what it holds on ranks other than ``src`` is dropped.
        src: The rank that sends, counted among all ranks and not within ``group``.
        group: Ranks that take part. Defaults to all.

    Raises:
        ArgumentTypeError: If ``data`` is no list.
        CollectiveError: If an item cannot be pickled; raised on all ranks.
        ConfigError: If this rank or ``src`` is not in the group.
    """
    if not isinstance(data, list):
        raise ArgumentTypeError(f"broadcast_object_list takes a list, got {type(data)}.")
    if not is_distributed():
        return
    check_member("src", src, group_state(group))
    device = communication_device(group=group)
    is_source = dist.get_rank() == src
    own, error = _try_to_pickle(data) if is_source else (bytearray(), None)
    size = torch.tensor([-len(own) if error else len(own)], device=device)
    dist.broadcast(size, src=src, group=group)
    sent = own if is_source else bytearray(abs(int(size)))
    received = torch.frombuffer(sent, dtype=torch.uint8).to(device)
    dist.broadcast(received, src=src, group=group)
    if size < 0:
        _raise_failure(f"broadcast_object_list(src={src})", src, received, error)
    if not is_source:
        data[:] = pickle.loads(_read_bytes(received))  # noqa: S301 (own ranks)


def _gather_pickles(call: str, data: Any, group: Any, dst: int | None = None) -> list[bytearray]:
    """Return every rank's pickle, on all ranks or on ``dst`` only; raise errors on all ranks."""
    ranks = group_state(group).ranks
    # Pickles travel through an accelerator where the group serves nothing else.
    device = communication_device(group=group)
    own, error = _try_to_pickle(data)
    size = torch.tensor([-len(own) if error else len(own)], device=device)
    all_sizes = [torch.empty_like(size) for _ in ranks]
    dist.all_gather(all_sizes, size, group=group)
    sizes = [int(each) for each in all_sizes]
    failed = [index for index, each in enumerate(sizes) if each < 0]
    padded = own.ljust(max(map(abs, sizes)), b"\0")
    sent = torch.frombuffer(padded, dtype=torch.uint8).to(device)
    is_to_all = dst is None or bool(failed)
    is_receiver = is_to_all or dist.get_rank() == dst
    rows = [torch.empty_like(sent) for _ in sizes] if is_receiver else []
    if is_to_all:
        dist.all_gather(rows, sent, group=group)
    else:
        dist.gather(sent, rows if is_receiver else None, dst=dst, group=group)
    if failed:
        first = failed[0]
        _raise_failure(call, ranks[first], rows[first][: -sizes[first]], error)
    return [_read_bytes(row[:size]) for row, size in zip(rows, sizes, strict=False)]


def _try_to_pickle(data: Any) -> tuple[bytearray, Exception | None]:
    """Return the pickle, or the error's text and the error."""
    try:
        file = io.BytesIO()
        _Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(data)
        return bytearray(file.getbuffer()), None
    except Exception as error:  # noqa: BLE001 (raised on all ranks)
        return bytearray(f"{type(error).__name__}: {error}".encode()), error


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        """Pickle of a sample that is a view of its batch the sample alone."""
        if type(obj) is Tensor and obj.layout is torch.strided and not obj.is_meta:
            storage = getattr(obj, "untyped_storage", obj.storage)()  # torch < 2.0
            if storage.nbytes() > obj.numel() * obj.element_size():
                own = obj.detach().clone().requires_grad_(obj.requires_grad)
                return own.__reduce_ex__(pickle.HIGHEST_PROTOCOL)  # type: ignore[no-untyped-call]
        return NotImplemented


def _raise_failure(call: str, rank: int, text: Tensor, error: Exception | None) -> None:
    message = _read_bytes(text).decode(errors="replace")
    raise CollectiveError(f"{call} failed on rank {rank}: {message}") from error


def _read_bytes(data: Tensor) -> bytearray:
    result = bytearray(data.numel())
    torch.frombuffer(result, dtype=torch.uint8).copy_(data)
    return result
