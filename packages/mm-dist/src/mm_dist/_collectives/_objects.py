"""Exchange picklable objects; only among ranks that trust each other, as pickle runs code."""

import pickle
from typing import Any

import torch.distributed as dist

from mm_dist._collectives._exchange import Exchange
from mm_dist._collectives._pickling import TensorPickler
from mm_dist._collectives._state import check_member, group_state
from mm_dist._collectives._stream import Outbox
from mm_dist._errors import ArgumentTypeError
from mm_dist._process_group import is_distributed


def all_gather_object(data: Any, group: Any = None) -> list[Any]:
    """Collect every rank's object on all ranks.

    Large objects travel in chunks of 32 MiB, so that beside the results a rank needs memory for
    one chunk only. A tensor arrives with its own elements and no more of its storage, on the
    receiving rank's current device of the same type.

    Args:
        data: Anything that can be pickled; ranks may hold different kinds.
        group: Ranks that take part. Defaults to all.

    Returns:
        One object per rank, in rank order; this rank's own is ``data`` itself. Without a process
        group ``[data]``.

    Raises:
        CollectiveError: If an object cannot be pickled or restored; raised on all ranks.
        ConfigError: If this rank is not in the group.

    Example:
        >>> all_gather_object("loss")
        ['loss']
    """
    if not is_distributed():
        return [data]
    state = group_state(group)
    exchange = Exchange("all_gather_object()", _load, group=group)
    loaded = exchange.run(lambda file: _dump(data, file))
    loaded[state.index] = data
    return [loaded[index] for index in range(state.world_size)]


def gather_object(data: Any, dst: int = 0, group: Any = None) -> list[Any] | None:
    """Collect every rank's object on one rank.

    Args:
        data: As for ``all_gather_object``.
        dst: The rank that receives, counted among all ranks and not within ``group``.
        group: Ranks that take part. Defaults to all.

    Returns:
        On ``dst`` as ``all_gather_object``; elsewhere ``None``.

    Raises:
        CollectiveError: If an object cannot be pickled or restored; raised on all ranks.
        ConfigError: If this rank or ``dst`` is not in the group.

    Example:
        >>> gather_object("loss")
        ['loss']
    """
    if not is_distributed():
        return [data]
    state = group_state(group)
    receiver = check_member("dst", dst, state)
    exchange = Exchange(f"gather_object(dst={dst})", _load, receiver, group)
    is_receiver = state.index == receiver
    loaded = exchange.run(None if is_receiver else lambda file: _dump(data, file))
    if not is_receiver:
        return None
    loaded[receiver] = data
    return [loaded[index] for index in range(state.world_size)]


def broadcast_object_list(data: list[Any], src: int = 0, group: Any = None) -> None:
    """Replace the items of every rank's list by those of one rank, in place.

    Args:
        data: The list; what it holds on ranks other than ``src`` is dropped.
        src: The rank that sends, counted among all ranks and not within ``group``.
        group: Ranks that take part. Defaults to all.

    Raises:
        ArgumentTypeError: If ``data`` is no list.
        CollectiveError: If an item cannot be pickled or restored; raised on all ranks.
        ConfigError: If this rank or ``src`` is not in the group.

    Example:
        >>> broadcast_object_list(["loss"])
    """
    if not isinstance(data, list):
        raise ArgumentTypeError(f"broadcast_object_list takes a list, got {type(data)}.")
    if not is_distributed():
        return
    source = check_member("src", src, group_state(group))
    is_source = dist.get_rank() == src
    exchange = Exchange(f"broadcast_object_list(src={src})", _load, group=group)
    loaded = exchange.run((lambda file: _dump(data, file)) if is_source else None)
    if not is_source:
        data[:] = loaded[source]


def _dump(data: Any, file: Outbox) -> None:
    TensorPickler(file).dump(data)


def _load(file: Any) -> Any:
    return pickle.Unpickler(file).load()  # noqa: S301 (own ranks)
