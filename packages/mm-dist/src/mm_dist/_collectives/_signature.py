"""Compare what the ranks pass to a collective, and say what differs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from mm_dist._collectives._objects import all_gather_object
from mm_dist._collectives._state import group_state
from mm_dist._errors import CollectiveError
from mm_dist._rank_spans import format_ranks

# Path, dtype and shape of each tensor.
Signature = tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]
_MAX_DIFFERENCES = 8


def read_signature(tensors: Mapping[str, Tensor]) -> Signature:
    """Return what ranks have to agree on, from tensors by path."""
    return tuple((path, data.dtype, tuple(data.shape)) for path, data in tensors.items())


def check_call(call: str, group: Any = None) -> None:
    """Compare a call with those of all other ranks, which must come here too.

    Raises:
        CollectiveError: If the ranks differ; it names them.
    """
    calls = all_gather_object(call, group)
    if len(set(calls)) == 1:
        return
    ranks_by_call: dict[str, list[int]] = {}
    for rank, each in zip(group_state(group).ranks, calls, strict=True):
        ranks_by_call.setdefault(each, []).append(rank)
    ordered = sorted(ranks_by_call.items(), key=lambda item: -len(item[1]))
    listed = "; ".join(
        f"rank{'s' * (len(ranks) > 1)} {format_ranks(ranks)}: {each}" for each, ranks in ordered
    )
    raise CollectiveError(
        f"The ranks called collectives that do not fit together: {listed}. All ranks must call "
        "the same one, with the same shape and dtype."
    )


def compare_signatures(
    call: str, own: Signature, group: Any, *, are_shapes_equal: bool = True
) -> list[Signature]:
    """Return every rank's signature.

    Raises:
        CollectiveError: If paths or dtypes differ between ranks, or shapes where they must not;
            raised on all of them.
    """
    signatures: list[Signature] = all_gather_object(own, group)
    compared = (
        signatures
        if are_shapes_equal
        else [tuple((path, dtype, ()) for path, dtype, _ in each) for each in signatures]
    )
    if len(set(compared)) > 1:
        _raise_difference(call, signatures, group_state(group).ranks)
    return signatures


def describe_tensor(data: Tensor) -> str:
    """Return the tensor's dtype and shape, e.g. ``float32 (2, 3)``."""
    return _describe(data.dtype, tuple(data.shape))


def _raise_difference(call: str, signatures: Sequence[Signature], ranks: Sequence[int]) -> NoReturn:
    usual, _ = Counter(signatures).most_common(1)[0]
    reference = ranks[signatures.index(usual)]
    expected = {path: (dtype, shape) for path, dtype, shape in usual}
    found: list[str] = []
    for rank, signature in zip(ranks, signatures, strict=True):
        given = {path: (dtype, shape) for path, dtype, shape in signature}
        found += [f"rank {rank} lacks {path}" for path in expected if path not in given]
        found += [f"only rank {rank} has {path}" for path in given if path not in expected]
        found += [
            f"{path} is {_describe(*given[path])} on rank {rank}, but {_describe(*value)} on rank "
            f"{reference}"
            for path, value in expected.items()
            if path in given and given[path] != value
        ]
    shown = "; ".join(found[:_MAX_DIFFERENCES])
    more = f"; and {len(found) - _MAX_DIFFERENCES} more" if len(found) > _MAX_DIFFERENCES else ""
    raise CollectiveError(
        f"{call} was called with data that differs between ranks: {shown}{more}. Give the same "
        "names, shapes and dtypes on every rank."
    )


def _describe(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    return f"{str(dtype).removeprefix('torch.')} {shape}"
