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

# Of complements, the one is the other. So nearly all reductions leave the tag of a rank that
# differs in the buffer, and those of ranks that ask for different ones fit together.
_BY_COMPLEMENT = {"min": "max", "band": "bor"}
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
        if self.dtype is None:
            return self.operation
        return {"mean": "sum", **_BY_COMPLEMENT}.get(self.operation, self.operation)

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
            flat = order_of_floats(flat, self.operation)
        carried = flat.to(self.dtype)
        return ~carried if self.operation in _BY_COMPLEMENT else carried

    def unpack(self, reduced: Tensor, dtype: torch.dtype, world_size: int) -> Tensor:
        """Return the result for a tensor of this dtype that was packed, one-dimensional."""
        divisor = world_size if self.operation == "mean" else 1
        if self.operation in _BY_COMPLEMENT and self.dtype is not None:
            reduced = ~reduced
        if self.dtype is None:
            values = reduced
        elif dtype == torch.bool:
            values = reduced != 0
        elif dtype.is_complex:
            values = torch.view_as_complex((reduced / divisor).reshape(-1, 2))
        elif not dtype.is_floating_point:
            values = self._whole_numbers(reduced, dtype).div(divisor, rounding_mode="trunc")
        elif self.dtype == torch.int64:
            values = floats_of_order(reduced, dtype, self.operation)
        else:
            values = reduced / divisor
        return values.to(dtype)

    def _is_halved(self, dtype: torch.dtype) -> bool:
        return self.dtype == torch.float64 and dtype in _WIDE_INTEGERS

    def _whole_numbers(self, reduced: Tensor, dtype: torch.dtype) -> Tensor:
        whole = reduced.to(torch.int64)
        if not self._is_halved(dtype):
            return whole
        high, low = whole.chunk(2)
        return (high << _HALF_BITS) + low
