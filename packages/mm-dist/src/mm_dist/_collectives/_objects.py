"""Exchange picklable objects; only among ranks that trust each other, as pickle runs code."""

import io
import pickle
import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mm_dist._backends import communication_device
from mm_dist._collectives._pickling import TensorPickler
from mm_dist._collectives._state import GroupState, check_member, group_state
from mm_dist._errors import ArgumentTypeError, CollectiveError
from mm_dist._process_group import is_distributed
from mm_dist._process_group._group_timeouts import read_group_timeout


def all_gather_object(data: Any, group: Any = None) -> list[Any]:
    """Collect every rank's object on all ranks.

    A tensor arrives with its own elements and no more of its storage, on the receiving rank's
    current device of the same type.

    Args:
        data: Anything that can be pickled; ranks may hold different kinds.
        group: Ranks that take part. Defaults to all.

    Returns:
        One object per rank, in rank order; this rank's own is ``data`` itself. Without a process
        group ``[data]``.

    Raises:
        CollectiveError: If an object cannot be pickled; raised on all ranks.
        ConfigError: If this rank is not in the group.

    Example:
        >>> all_gather_object("loss")
        ['loss']
    """
    if not is_distributed():
        return [data]
    exchange = _ObjectExchange("all_gather_object()", group)
    rows = exchange.gather(exchange.dump(data), None)
    return exchange.load(rows, data)


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

    Example:
        >>> gather_object("loss")
        ['loss']
    """
    if not is_distributed():
        return [data]
    state = group_state(group)
    receiver = check_member("dst", dst, state)
    exchange = _ObjectExchange(f"gather_object(dst={dst})", group)
    own = None if state.index == receiver else data
    rows = exchange.gather(exchange.dump(own), dst)
    return exchange.load(rows, data) if state.index == receiver else None


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

    Example:
        >>> broadcast_object_list(["loss"])
    """
    if not isinstance(data, list):
        raise ArgumentTypeError(f"broadcast_object_list takes a list, got {type(data)}.")
    if not is_distributed():
        return
    check_member("src", src, group_state(group))
    exchange = _ObjectExchange(f"broadcast_object_list(src={src})", group)
    is_source = dist.get_rank() == src
    sent = exchange.broadcast(exchange.dump(data if is_source else None), src)
    if not is_source:
        data[:] = pickle.loads(sent)  # noqa: S301 (own ranks)


class _ObjectExchange:
    """One exchange of pickles: their sizes first, then bytes of one length.

    torch's own functions for objects need NumPy, and send the whole storage of a tensor.
    """

    def __init__(self, call: str, group: Any) -> None:
        self._call = call
        self._group = objects_group(group)
        self._state: GroupState = group_state(self._group)
        # Pickles travel through an accelerator where nothing else is served.
        self._device = communication_device(group=self._group)
        self._error: Exception | None = None

    def dump(self, data: Any) -> bytearray:
        """Return the pickle of an object, or the error in its place."""
        file = io.BytesIO()
        try:
            TensorPickler(file).dump(data)
        except Exception as error:  # noqa: BLE001 (raised on all ranks)
            self._error = error
            return bytearray(f"{type(error).__name__}: {error}".encode())
        return bytearray(file.getbuffer())

    def gather(self, data: bytearray, dst: int | None) -> list[bytearray]:
        """Return every rank's bytes, on all ranks or on one."""
        sizes = self._agree_on_sizes(data)
        longest = max(sizes)
        own = self._place(data.ljust(longest, b"\0"))
        is_receiver = dst is None or dist.get_rank() == dst
        rows = [torch.empty_like(own) for _ in sizes] if is_receiver else []
        if dst is None:
            dist.all_gather(rows, own, group=self._group)
        else:
            dist.gather(own, rows if is_receiver else None, dst=dst, group=self._group)
        pairs = zip(rows, sizes, strict=False)
        return [_read_bytes(row[:size]) for row, size in pairs]

    def broadcast(self, data: bytearray, src: int) -> bytearray:
        """Return the bytes of one rank on all."""
        size = self._agree_on_sizes(data)[self._state.ranks.index(src)]
        sent = self._place(data if dist.get_rank() == src else bytearray(size))
        dist.broadcast(sent, src=src, group=self._group)
        return _read_bytes(sent)

    def load(self, rows: list[bytearray], own: Any) -> list[Any]:
        """Return the objects, in rank order."""
        index = self._state.index
        return [own if i == index else pickle.loads(row) for i, row in enumerate(rows)]  # noqa: S301

    def _agree_on_sizes(self, data: bytearray) -> list[int]:
        """Return the size of each rank's bytes.

        Raises:
            CollectiveError: If some are an error.
        """
        sign = 1 if self._error is None else -1
        own = torch.tensor([sign * len(data)], dtype=torch.int64, device=self._device)
        received = [torch.empty_like(own) for _ in self._state.ranks]
        dist.all_gather(received, own, group=self._group)
        sizes = [int(each) for each in received]
        failed = next((i for i, size in enumerate(sizes) if size < 0), None)
        if failed is None:
            return sizes
        error, self._error = self._error, None
        message = self.broadcast(data, self._state.ranks[failed]).decode(errors="replace")
        raise CollectiveError(
            f"{self._call} failed on rank {self._state.ranks[failed]}: {message}"
        ) from error

    def _place(self, data: bytearray) -> Tensor:
        return torch.frombuffer(data, dtype=torch.uint8).to(self._device)


def _read_bytes(data: Tensor) -> bytearray:
    result = bytearray(data.numel())
    if result:
        torch.frombuffer(result, dtype=torch.uint8).copy_(data)
    return result


def objects_group(group: Any = None) -> Any:
    """Return the group for the objects of ``group``; all ranks must come here together.

    That is the group itself, unless it is the default one and serves an accelerator only: then a
    gloo group is made beside it on first use, with the same timeout, so that pickles need no
    memory of the accelerator. It is destroyed together with the default group.
    """
    default = dist.group.WORLD
    if group is not None and group is not default:
        return group
    if communication_device(group=default).type == "cpu" or not dist.is_gloo_available():
        return default
    state = group_state(default)
    side = state.find_side_group()
    if side is None:
        timeout = read_group_timeout(default)
        limits: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
        side = dist.new_group(backend="gloo", **limits)
        # torch keeps it until the default group is destroyed; we must not keep it any longer.
        state.find_side_group = weakref.ref(side)
    return side
