"""Reduce a model's parameters or buffers over all ranks."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from mm_dist._collectives._operations import check_operation
from mm_dist._collectives._reduction import all_reduce
from mm_dist._collectives._wire import check_tensor
from mm_dist._errors import ArgumentTypeError
from mm_dist._process_group import is_distributed

_MIB = 2**20


def all_reduce_params(
    params: Iterable[Tensor],
    coalesce: bool = True,  # noqa: FBT001, FBT002 (MMEngine's signature)
    bucket_size_mb: int = -1,
    op: str = "sum",
    group: Any = None,
) -> None:
    """Reduce tensors over all ranks, in place, such as a model's parameters or buffers.

    Args:
        params: In the same order on all ranks, with the same shapes and dtypes; a generator will
            do. One that comes twice is reduced once.
        coalesce: Whether tensors of one dtype and device travel together. That is faster for many
            small ones, and takes memory for a copy of what travels together.
        bucket_size_mb: How much may travel together, in MiB; a larger tensor travels alone. No
            limit if it is not positive.
        op: As in ``all_reduce``.
        group: Ranks that take part. Defaults to all.

    Raises:
        ArgumentTypeError: If something in ``params`` is no dense tensor, or the size no number.
        ConfigError: If the operation is not known, or has no meaning for a dtype.

    Example:
        >>> all_reduce_params(torch.nn.Linear(2, 2).parameters(), op="mean")
    """
    _check_arguments(params, bucket_size_mb, op)
    tensors = list({id(tensor): tensor for tensor in params}.values())
    for tensor in tensors:
        check_tensor(tensor, "all_reduce_params")
    for bucket in _fill_buckets(tensors, bucket_size_mb * _MIB) if coalesce else _singly(tensors):
        _reduce_bucket(bucket, op, group)


def _check_arguments(params: object, bucket_size_mb: object, op: object) -> None:
    """Refuse what cannot be used, also where there is nothing to reduce."""
    check_operation(op)
    if isinstance(params, nn.Module):
        raise ArgumentTypeError(
            f"all_reduce_params takes tensors, got the module {type(params).__name__}; pass "
            "module.parameters(), or module.buffers()."
        )
    if not isinstance(params, Iterable):
        raise ArgumentTypeError(
            f"all_reduce_params takes an iterable of tensors, got {type(params)}; pass a list, or "
            "module.parameters()."
        )
    if not isinstance(bucket_size_mb, (int, float)):
        raise ArgumentTypeError(
            f"bucket_size_mb={bucket_size_mb!r} is no number; pass one of MiB, or -1 for no limit."
        )


def _singly(tensors: list[Tensor]) -> Iterator[list[Tensor]]:
    return ([tensor] for tensor in tensors)


def _fill_buckets(tensors: list[Tensor], max_bytes: int) -> Iterator[list[Tensor]]:
    """Put tensors of one dtype and device together, in order, up to a size."""
    by_kind: defaultdict[tuple[torch.dtype, torch.device], list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        by_kind[tensor.dtype, tensor.device].append(tensor)
    for alike in by_kind.values():
        bucket: list[Tensor] = []
        size = 0
        for tensor in alike:
            num_bytes = tensor.numel() * tensor.element_size()
            if bucket and 0 < max_bytes < size + num_bytes:
                yield bucket
                bucket, size = [], 0
            bucket.append(tensor)
            size += num_bytes
        yield bucket


def _reduce_bucket(bucket: list[Tensor], op: str, group: Any) -> None:
    if len(bucket) == 1 or not is_distributed():
        for tensor in bucket:
            all_reduce(tensor, op, group)
        return
    flat = torch.cat([tensor.detach().reshape(-1) for tensor in bucket])
    all_reduce(flat, op, group)
    pieces = torch.split(flat, [tensor.numel() for tensor in bucket])
    for tensor, piece in zip(bucket, pieces, strict=True):
        tensor.detach().copy_(piece.reshape(tensor.shape))
