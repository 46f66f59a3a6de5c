"""Compare what the ranks call, before they communicate, where the user asked for that."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from mm_dist._collectives._object_wire import ObjectWire
from mm_dist._errors import CollectiveError


def check_call(call: str, data: Tensor, group: Any = None) -> None:
    """Compare a call on a tensor with those of all other ranks, which must come here too.

    Args:
        call: The collective and its arguments.
        data: What it was called with.
        group: Ranks that take part. Defaults to all.

    Raises:
        CollectiveError: If the ranks differ; it names them.
    """
    wire = ObjectWire(group)
    compare_calls(wire, f"{call} of {describe_tensor(data)}")


def compare_calls(wire: ObjectWire, call: str) -> None:
    """Compare a text with those of all other ranks, which must come here too.

    Raises:
        CollectiveError: If the ranks differ; it names them.
    """
    calls = wire.gather_texts(call)
    if len(set(calls)) > 1:
        raise CollectiveError(
            f"The ranks called collectives that do not fit together: {list_calls(wire, calls)}. "
            "All ranks must call the same one, with the same shape and dtype."
        )


def list_calls(wire: ObjectWire, calls: Sequence[str]) -> str:
    """Say which ranks called what, what most of them called first."""
    ranks_by_call: defaultdict[str, list[int]] = defaultdict(list)
    for rank, call in zip(wire.ranks, calls, strict=True):
        ranks_by_call[call].append(rank)
    ordered = sorted(ranks_by_call.items(), key=lambda item: -len(item[1]))
    return "; ".join(f"{describe_ranks(ranks)}: {call}" for call, ranks in ordered)


def describe_ranks(ranks: Sequence[int]) -> str:
    """Return e.g. ``rank 3`` or ``ranks 0, 1 and 7 more``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown, num_hidden = ranks[:8], len(ranks[8:])
    more = f" and {num_hidden} more" if num_hidden else ""
    return f"ranks {', '.join(map(str, shown))}{more}"


def describe_tensor(data: Tensor) -> str:
    """Return the tensor's dtype and shape, e.g. ``float32 (2, 3)``."""
    return f"{str(data.dtype).removeprefix('torch.')} {tuple(data.shape)}"
