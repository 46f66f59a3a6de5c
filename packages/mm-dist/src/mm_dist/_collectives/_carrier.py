"""Carry tensors of different dtypes in one buffer, so that its reduction is exact for each.

* In ``float64``, a sum is exact for integers of up to 32 bits, and at least as exact as their own
  for floats. An integer of 64 bits travels as two halves of 32, whose sums are put together again:
  exact for up to two million ranks. A complex number travels as its two parts.
* In ``int64``, all operations on integers are exact. A minimum or maximum of floats is that of
  integers in the same order, made from their bits.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mm_dist._collectives._float_order import floats_of_order, order_of_floats

_HALF_BITS = 32
_LOW_HALF = 2**_HALF_BITS - 1
_WIDE_INTEGERS = tuple(getattr(torch, name) for name in ("int64", "uint64") if hasattr(torch, name))


@dataclass(frozen=True)
class Carrier:
    """How tensors travel through one reduction.

    Attributes:
        operation: What the user asked for.
        dtype: ``float64``, ``int64``, or ``float32`` where the device has no ``float64``; ``None``
            for tensors of one dtype, which travel as they are.
    """

    operation: str
    dtype: torch.dtype | None = None

    @property
    def operation_on_wire(self) -> str:
        """What the ranks reduce by."""
        is_divided_later = self.operation == "mean" and self.dtype is not None
        return "sum" if is_divided_later else self.operation

    def count(self, dtype: torch.dtype, numel: int) -> int:
        """Return how many elements of the carrier so many of the dtype take."""
        is_pair = self.dtype is not None and (dtype.is_complex or self._is_halved(dtype))
        return numel * (2 if is_pair else 1)

    def pack(self, data: Tensor) -> Tensor:
        """Return the tensor as it travels, one-dimensional."""
        flat = data.reshape(-1)
        if self.dtype is None:
            return flat
        if flat.is_complex():
            return torch.view_as_real(flat).reshape(-1).to(self.dtype)
        if self._is_halved(flat.dtype):
            whole = flat.to(torch.int64)
            return torch.cat([whole >> _HALF_BITS, whole & _LOW_HALF]).to(self.dtype)
        if flat.is_floating_point() and self.dtype == torch.int64:
            return order_of_floats(flat, self.operation)
        return flat.to(self.dtype)

    def unpack(self, reduced: Tensor, like: Tensor, world_size: int) -> Tensor:
        """Return the result for a tensor that was packed, in its dtype and shape."""
        divisor = world_size if self.operation == "mean" else 1
        if self.dtype is None:
            values = reduced
        elif like.dtype == torch.bool:
            values = reduced != 0
        elif like.is_complex():
            parts = (reduced / divisor).to(torch.view_as_real(like).dtype)
            values = torch.view_as_complex(parts.reshape(-1, 2))
        elif not like.is_floating_point():
            values = self._whole_numbers(reduced, like.dtype).div(divisor, rounding_mode="trunc")
        elif self.dtype == torch.int64:
            values = floats_of_order(reduced, like.dtype, self.operation)
        else:
            values = reduced / divisor
        return values.to(like.dtype).reshape(like.shape)

    def _is_halved(self, dtype: torch.dtype) -> bool:
        return self.dtype == torch.float64 and dtype in _WIDE_INTEGERS

    def _whole_numbers(self, reduced: Tensor, dtype: torch.dtype) -> Tensor:
        whole = reduced.to(torch.int64)
        if not self._is_halved(dtype):
            return whole
        high, low = whole.chunk(2)
        return (high << _HALF_BITS) + low
