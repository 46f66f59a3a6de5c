"""Reduce tensors over all ranks."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mm_dist._collectives._wire import place_on_wire, write_back
from mm_dist._errors import ArgumentTypeError, ConfigError
from mm_dist._info import get_world_size
from mm_dist._process_group import is_distributed
from mm_dist._suggestion import suggest_name

_OPERATIONS = ("sum", "product", "min", "max", "band", "bor", "bxor", "mean")
# A bool is reduced as 0 or 1, where gloo of every torch can: 'or' is max, 'and' is min.
_BOOL_OPERATIONS = {
    "sum": "max",
    "max": "max",
    "bor": "max",
    "product": "min",
    "min": "min",
    "band": "min",
}


def all_reduce(data: Tensor, op: str = "sum", group: Any = None) -> None:
    """Reduce a tensor over all ranks, in place.

    Args:
        data: Of the same shape and dtype on all ranks. In ``bool``, a sum means *or*.
        op: ``sum``, ``product``, ``min``, ``max``, ``band``, ``bor``, ``bxor`` or ``mean``, in
            any case. The mean of integers is rounded toward zero.
        group: Ranks that take part. Defaults to all.

    Raises:
        ConfigError: If the operation is not known, or has no meaning for the dtype.

    Example:
        >>> data = torch.ones(2)
        >>> all_reduce(data, "mean")
        >>> data
        tensor([1., 1.])
    """
    operation = read_operation(op, data.dtype)
    if not is_distributed():
        return
    placed = place_on_wire(data, group)
    write_back(data, _reduce(placed, operation, group))


def all_reduce_dict(data: dict[str, Tensor], op: str = "sum", group: Any = None) -> None:
    """Reduce every tensor of a dict over all ranks, in place, with one collective per dtype.

    Args:
        data: Name to tensor. Names, shapes and dtypes agree on all ranks; the order need not.
        op: As in ``all_reduce``.
        group: Ranks that take part. Defaults to all.

    Raises:
        ArgumentTypeError: If ``data`` is no dict.
        ConfigError: If the operation is not known, or has no meaning for a dtype.

    Example:
        >>> all_reduce_dict({"loss": torch.tensor(2.0)}, "mean")
    """
    if not isinstance(data, dict):
        raise ArgumentTypeError(f"all_reduce_dict takes a dict of tensors, got {type(data)}.")
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for name in sorted(data):
        by_dtype.setdefault(data[name].dtype, []).append(data[name])
    for dtype in sorted(by_dtype, key=str):
        _reduce_together(by_dtype[dtype], op, group)


def _reduce_together(tensors: list[Tensor], op: str, group: Any) -> None:
    operation = read_operation(op, tensors[0].dtype)
    if not is_distributed():
        return
    placed = torch.cat([place_on_wire(tensor, group).reshape(-1) for tensor in tensors])
    reduced = _reduce(placed, operation, group)
    pieces = torch.split(reduced, [tensor.numel() for tensor in tensors])
    for tensor, piece in zip(tensors, pieces, strict=True):
        write_back(tensor, piece.reshape(tensor.shape))


def read_operation(op: str, dtype: torch.dtype) -> str:
    """Return the operation in lower case.

    Raises:
        ConfigError: If it is not known, or has no meaning for the dtype.
    """
    operation = op.lower() if isinstance(op, str) else op
    if operation not in _OPERATIONS:
        raise ConfigError(
            f"op={op!r} is not known; there are: {', '.join(_OPERATIONS)}."
            f"{suggest_name(str(op), _OPERATIONS)}"
        )
    if dtype == torch.bool and operation not in _BOOL_OPERATIONS:
        raise ConfigError(f"op={op!r} has no meaning for torch.bool; convert the tensor first.")
    return operation


def _reduce(placed: Tensor, operation: str, group: Any) -> Tensor:
    """Reduce a tensor that is on the wire already, in place where the dtype allows it."""
    if placed.numel() == 0:  # On all ranks; gloo of older torch crashes.
        return placed
    if placed.dtype == torch.bool:
        return _reduce(placed.to(torch.uint8), _BOOL_OPERATIONS[operation], group) != 0
    if placed.dtype == torch.bfloat16 and placed.device.type == "cpu":
        # gloo of older torch lacks bfloat16; in float32 all versions round once, at the end.
        return _reduce(placed.float(), operation, group)
    torch_name = "SUM" if operation == "mean" else operation.upper()
    dist.all_reduce(placed, getattr(dist.ReduceOp, torch_name), group=group)
    if operation == "mean":
        is_exact = placed.is_floating_point() or placed.is_complex()
        rounding = None if is_exact else "trunc"
        return torch.div(placed, get_world_size(group), rounding_mode=rounding)
    return placed
