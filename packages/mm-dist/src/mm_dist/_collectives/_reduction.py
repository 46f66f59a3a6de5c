"""Reduce tensors over all ranks."""

import secrets
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mm_dist._collectives._state import group_state
from mm_dist._collectives._tensors import (
    check_tensor,
    compare_calls,
    flatten,
    place,
    read_signature,
    rebuild,
    write_back,
)
from mm_dist._errors import ArgumentTypeError, ConfigError
from mm_dist._info import is_main_process
from mm_dist._message import suggest_name
from mm_dist._state import is_distributed

_OPERATIONS = ("sum", "product", "min", "max", "band", "bor", "bxor", "mean", "avg")
_BITWISE = ("band", "bor", "bxor")
# A bool travels as 0 or 1: 'or' is max, 'and' is min.
_OF_BOOLS = {
    **dict.fromkeys(("sum", "max", "bor"), "max"),
    **dict.fromkeys(("product", "min", "band"), "min"),
    "bxor": "bxor",
}
_OF_BACKENDS = (torch.int8, torch.uint8, torch.int32, torch.int64, torch.float32, torch.float64)
_MIB = 2**20


def all_reduce(data: Tensor, op: str = "sum", group: Any = None) -> None:
    """Reduce a tensor over all ranks, in place; gradients do not flow through it.

    Integers wrap around as in any arithmetic of their dtype, except in a mean, which is right
    whenever the sum fits in 64 bits. ``bfloat16`` is added in ``float32`` where the backend is
    slow or unable to do it itself, and rounded once.

    Args:
        data: Of the same shape and dtype on all ranks, on any device. For ``bool``, sum is
            logical or, product is logical and, ``bxor`` is parity.
        op: ``sum``, ``product``, ``min``, ``max``, ``band``, ``bor``, ``bxor``, ``mean`` or
            ``avg`` (the same), in any case. The mean of integers is rounded toward zero. Complex
            numbers have a sum and a mean.
        group: Ranks that take part, of which this one must be a member. Defaults to all.

    Raises:
        ArgumentTypeError: If ``data`` is no dense tensor.
        CollectiveError: If ranks differ in the call, with ``MM_DIST_DEBUG=1``; raised on all.
        ConfigError: If the operation is not known, or has no meaning for the dtype, or if this
            rank is not in the group.

    Example:
        >>> data = torch.ones(2)
        >>> all_reduce(data, "mean")
        >>> data
        tensor([1., 1.])
    """
    check_tensor(data, "all_reduce")
    operation = _read_operation(op, data.dtype)
    if not is_distributed():
        return
    state = group_state(group)
    if state.is_checked:
        compare_calls(f"all_reduce(op={operation!r})", read_signature({"data": data}), group)
    if data.numel() > 0:  # gloo of older torch crashes
        write_back(data, _reduce_placed(place(data, group, state), operation, group))


def all_reduce_dict(data: dict[Any, Any], op: str = "sum", group: Any = None) -> None:
    """Reduce every tensor of a dict over all ranks, in place; one all-reduce per dtype.

    A tensor that was computed with gradients, as a loss, is replaced in the dict instead: what a
    backward pass needs stays as it is.

    With ``MM_DIST_DEBUG=1`` names, shapes and dtypes are compared between the ranks first.

    Args:
        data: Name to tensor, or to nested dicts, lists and tuples of tensors. Names, shapes and
            dtypes agree on all ranks; the order need not.
        op: As in ``all_reduce``.
        group: Ranks that take part, of which this one must be a member. Defaults to all.

    Raises:
        ArgumentTypeError: If ``data`` is no dict, or holds something else than dense tensors.
        CollectiveError: If names, shapes, dtypes or ``op`` differ between ranks, where they are
            compared; raised on all of them.
        ConfigError: If the operation is not known, or has no meaning for a dtype, or if this rank
            is not in the group.

    Example:
        >>> all_reduce_dict({"loss": torch.tensor(2.0)}, "mean")
    """
    if not isinstance(data, dict):
        raise ArgumentTypeError(f"all_reduce_dict takes a dict of tensors, got {type(data)}.")
    tensors = flatten(data, "all_reduce_dict")
    for path, tensor in tensors.items():
        _read_operation(op, tensor.dtype, path)
    if not is_distributed():
        return
    if any(tensor.grad_fn is not None for tensor in tensors.values()):
        own = (t if t.grad_fn is None else t.detach().clone() for t in tensors.values())
        data.update(rebuild(data, own))
        tensors = flatten(data, "all_reduce_dict")
    if group_state(group).is_checked:
        compare_calls(f"all_reduce_dict(op={op.lower()!r})", read_signature(tensors), group)
    for bucket in _fill_buckets(tensors.values()):
        _reduce_together(bucket, op, group)


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
        ArgumentTypeError: If something in ``params`` is no dense tensor.
        ConfigError: If the operation is not known, or has no meaning for a dtype.

    Example:
        >>> all_reduce_params(torch.nn.Linear(2, 2).parameters(), op="mean")
    """
    tensors = list({id(tensor): tensor for tensor in params}.values())
    for tensor in tensors:
        check_tensor(tensor, "all_reduce_params")
    # With a limit of one byte each travels alone.
    for bucket in _fill_buckets(tensors, bucket_size_mb * _MIB if coalesce else 1):
        _reduce_together(bucket, op, group)


def _fill_buckets(tensors: Iterable[Tensor], max_bytes: int = 0) -> Iterator[list[Tensor]]:
    """Put tensors of one dtype and device together, in order, up to a size if it is positive."""
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


def sync_random_seed(group: Any = None) -> int:
    """Return a random seed that is the same on all ranks.

    No random number generator is used or changed: the seed comes from the operating system.

    Args:
        group: Ranks that agree. Defaults to all.

    Returns:
        A number of at least 0 and less than ``2**31``.

    Example:
        >>> 0 <= sync_random_seed() < 2**31
        True
    """
    # The others add 0; a sum needs no translation of the group's rank 0 into a global rank.
    seed = torch.tensor(secrets.randbelow(2**31) if is_main_process(group) else 0)
    all_reduce(seed, "sum", group)
    return int(seed)


def _reduce_together(tensors: list[Tensor], op: str, group: Any) -> None:
    """Reduce tensors of one dtype by one all-reduce."""
    if len(tensors) == 1:
        all_reduce(tensors[0], op, group)
        return
    flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
    all_reduce(flat, op, group)
    pieces = torch.split(flat, [tensor.numel() for tensor in tensors])
    for tensor, piece in zip(tensors, pieces, strict=True):
        tensor.detach().copy_(piece.view(tensor.shape))


def _read_operation(op: Any, dtype: torch.dtype, path: str = "data") -> str:
    """Return the operation in lower case, if it exists for the dtype."""
    if not isinstance(op, str) or op.lower() not in _OPERATIONS:
        raise ConfigError(
            f"op={op!r} is not known; there are: {', '.join(_OPERATIONS)}."
            f"{suggest_name(str(op), _OPERATIONS)}"
        )
    # torch's name for the mean, which only NCCL computes.
    operation = "mean" if op.lower() == "avg" else op.lower()
    if dtype == torch.bool:
        has_meaning = operation in _OF_BOOLS
    elif dtype.is_complex:
        has_meaning = operation in ("sum", "mean")
    else:
        has_meaning = not (dtype.is_floating_point and operation in _BITWISE)
    if not has_meaning:
        raise ConfigError(
            f"{path}: op={op!r} has no meaning for {dtype}; convert the tensor first."
        )
    return operation


@lru_cache(maxsize=512)
def _form_on_wire(
    operation: str, dtype: torch.dtype, device: torch.device
) -> tuple[str, torch.dtype]:
    """Return the operation and the dtype in which a backend reduces a real dtype exactly."""
    if dtype == torch.bool:
        return _OF_BOOLS[operation], torch.int32
    is_mean = operation == "mean"
    on_wire = "sum" if is_mean else operation
    if dtype.is_floating_point:
        if dtype == torch.float64 and device.type == "npu":  # HCCL has no doubles
            return on_wire, torch.float32
        # A sum in float16 can overflow although the mean does not; gloo is slow or unable.
        is_short = dtype not in (torch.float32, torch.float64) and (is_mean or device.type == "cpu")
        return on_wire, torch.float32 if is_short else dtype
    if is_mean:
        return on_wire, torch.int64
    return on_wire, dtype if dtype in _OF_BACKENDS else torch.int64


def _reduce_placed(placed: Tensor, operation: str, group: Any) -> Tensor:
    """Reduce in place where the dtype allows it; the result may have a wider dtype."""
    if placed.is_complex():
        return torch.view_as_complex(_reduce_placed(torch.view_as_real(placed), operation, group))
    on_wire, dtype = _form_on_wire(operation, placed.dtype, placed.device)
    wide = placed if placed.dtype == dtype else placed.to(dtype)
    dist.all_reduce(wide, getattr(dist.ReduceOp, on_wire.upper()), group=group)
    if operation == "mean":
        is_float = wide.is_floating_point()
        return wide.div_(dist.get_world_size(group), rounding_mode=None if is_float else "trunc")
    return wide != 0 if placed.dtype == torch.bool else wide
