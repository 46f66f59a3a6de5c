"""Map floats to integers of the same order, and back."""

import torch
from torch import Tensor

_INT64 = torch.iinfo(torch.int64)


def order_of_floats(data: Tensor, operation: str) -> Tensor:
    """Return integers whose minimum or maximum is that of the floats.

    Args:
        data: Of any floating-point dtype.
        operation: ``min`` or ``max``; NaN gets the integer that wins it.
    """
    wide = data if data.dtype == torch.float64 else data.to(torch.float32)
    order = _flip_negative(wide.view(_integer_of(wide.dtype)), wide.dtype)
    return torch.where(torch.isnan(wide), _winner(operation), order)


def floats_of_order(order: Tensor, dtype: torch.dtype, operation: str) -> Tensor:
    """Undo ``order_of_floats`` for data of a dtype; the result is in ``float32`` or wider."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    values = _flip_negative(order, wide).to(_integer_of(wide)).view(wide)
    # The winner is the order of no number.
    return torch.where(order == _winner(operation), float("nan"), values)


def _flip_negative(bits: Tensor, dtype: torch.dtype) -> Tensor:
    """Turn the bits of floats into their order, or the order into bits; it undoes itself."""
    whole = bits.to(torch.int64)
    return torch.where(whole < 0, whole ^ torch.iinfo(_integer_of(dtype)).max, whole)


def _integer_of(dtype: torch.dtype) -> torch.dtype:
    return torch.int64 if dtype == torch.float64 else torch.int32


def _winner(operation: str) -> int:
    return _INT64.max if operation == "max" else _INT64.min
