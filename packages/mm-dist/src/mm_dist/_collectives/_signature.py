"""Find out whether all ranks pass the same tensors, and say what differs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NoReturn

import torch
from torch import Tensor

from mm_dist._errors import CollectiveError

# Path, dtype and shape of each tensor.
Signature = tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]
_MAX_DIFFERENCES = 8


def read_signature(tensors: Mapping[str, Tensor]) -> Signature:
    """Return what ranks have to agree on, from tensors by path."""
    return tuple((path, data.dtype, tuple(data.shape)) for path, data in tensors.items())


def raise_difference(call: str, signatures: Sequence[Signature], ranks: Sequence[int]) -> NoReturn:
    """Raise an error that names the ranks that differ from most others, and how.

    Args:
        call: The collective, for the message.
        signatures: One per rank; not all the same.
        ranks: Their numbers among all processes.

    Raises:
        CollectiveError: Always.
    """
    usual, _ = Counter(signatures).most_common(1)[0]
    reference = ranks[signatures.index(usual)]
    expected = {path: (dtype, shape) for path, dtype, shape in usual}
    found: list[str] = []
    for rank, signature in zip(ranks, signatures, strict=True):
        given = {path: (dtype, shape) for path, dtype, shape in signature}
        found += _list_differences(rank, given, reference, expected)
    shown = "; ".join(found[:_MAX_DIFFERENCES])
    more = f"; and {len(found) - _MAX_DIFFERENCES} more" if len(found) > _MAX_DIFFERENCES else ""
    raise CollectiveError(
        f"{call} was called with data that differs between ranks: {shown}{more}. Give the same "
        "names, shapes and dtypes on every rank."
    )


_Tensors = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]


def _list_differences(rank: int, given: _Tensors, reference: int, expected: _Tensors) -> list[str]:
    missing = [f"rank {rank} lacks {path}" for path in expected if path not in given]
    extra = [f"only rank {rank} has {path}" for path in given if path not in expected]
    changed = [
        f"{path} is {_describe(*given[path])} on rank {rank}, but {_describe(*value)} on rank "
        f"{reference}"
        for path, value in expected.items()
        if path in given and given[path] != value
    ]
    return missing + extra + changed


def _describe(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    return f"{str(dtype).removeprefix('torch.')} {shape}"
