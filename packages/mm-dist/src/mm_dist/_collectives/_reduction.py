"""Reduce tensors over all ranks."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mm_dist._collectives._operations import BITWISE, form_on_wire, read_operation
from mm_dist._collectives._signature import check_call, describe_tensor
from mm_dist._collectives._state import GroupState, group_state
from mm_dist._collectives._wire import check_tensor, note_change, place_on_wire, write_back
from mm_dist._process_group import is_distributed

_DICT_HINT = " all_reduce_dict takes dicts, lists and tuples of tensors."


def all_reduce(data: Tensor, op: str = "sum", group: Any = None) -> None:
    """Reduce a tensor over all ranks, in place; gradients do not flow through it.

    Integers wrap around as in any arithmetic of their dtype, but for the mean, which is right
    whenever the sum fits in 64 bits. ``bfloat16`` is added in ``float32`` where the backend is
    slow or unable to do it itself, and rounded once.

    Args:
        data: Of the same shape and dtype on all ranks, on any device. In ``bool``, a sum means
            *or*, a product *and*, and ``bxor`` an odd number.
        op: ``sum``, ``product``, ``min``, ``max``, ``band``, ``bor``, ``bxor``, ``mean`` or
            ``avg`` (the same), in any case. The mean of integers is rounded toward zero. Complex
            numbers have a sum and a mean.
        group: Ranks that take part, of which this one must be a member. Defaults to all.

    Raises:
        ArgumentTypeError: If ``data`` is no dense tensor.
        ConfigError: If the operation is not known, or has no meaning for the dtype, or if this
            rank is not in the group.

    Example:
        >>> data = torch.ones(2)
        >>> all_reduce(data, "mean")
        >>> data
        tensor([1., 1.])
    """
    check_tensor(data, "all_reduce", _DICT_HINT)
    operation = read_operation(op, data.dtype)
    if not is_distributed():
        return
    state = group_state(group)
    if state.is_checked:
        check_call(f"all_reduce(op={operation!r}) of {describe_tensor(data)}", group)
    reduced = reduce_placed(place_on_wire(data, group, state), operation, group, state)
    write_back(data, reduced)
    note_change(data)


def reduce_placed(placed: Tensor, operation: str, group: Any, state: GroupState) -> Tensor:
    """Reduce a tensor that is on the wire already, in place where the dtype allows it.

    Returns:
        The result, of the same shape; its dtype is ``placed.dtype``, or a wider one.
    """
    if placed.numel() == 0:  # On all ranks; gloo of older torch crashes.
        return placed
    if placed.is_complex():
        reduced = reduce_placed(torch.view_as_real(placed), operation, group, state)
        return torch.view_as_complex(reduced)
    on_wire, dtype = form_on_wire(operation, placed.dtype, placed.device)
    wide = placed if placed.dtype == dtype else placed.to(dtype)
    if on_wire in BITWISE and not placed.is_cpu:
        wide = _reduce_bits(wide, on_wire, group)
    else:
        dist.all_reduce(wide, getattr(dist.ReduceOp, on_wire.upper()), group=group)
    if operation == "mean":
        return _divide(wide, state.world_size)
    return wide != 0 if placed.dtype == torch.bool else wide


def _divide(total: Tensor, count: int) -> Tensor:
    return total.div_(count, rounding_mode=None if total.is_floating_point() else "trunc")


def _reduce_bits(placed: Tensor, operation: str, group: Any) -> Tensor:
    """Reduce integers bit by bit: the backends of accelerators know no bitwise operation."""
    positions = torch.arange(torch.iinfo(placed.dtype).bits, device=placed.device)
    bits = ((placed.long().unsqueeze(-1) >> positions) & 1).int()
    on_wire = {"band": "MIN", "bor": "MAX", "bxor": "SUM"}[operation]
    dist.all_reduce(bits, getattr(dist.ReduceOp, on_wire), group=group)
    # Each bit has a place of its own, so that their sum is their union.
    return ((bits.long() & 1) << positions).sum(-1).to(placed.dtype)
