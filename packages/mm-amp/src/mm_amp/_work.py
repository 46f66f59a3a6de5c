"""How much an operation computes, and in which dtype."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from ._flop_formulas import formulas
from ._nested import tensors_in

_aten = torch.ops.aten
_NO_COMPUTATION = ("c10d", "_c10d_functional", "c10d_functional", "fsdp", "prim")


def compute_dtype(args: Sequence[Any], outputs: Any) -> torch.dtype | None:
    """Return the dtype that an operation computes in: that of its first floating-point input.

    An operation without one is judged by its outputs. ``None``: it does not compute in floating
    point.
    """
    for tensor in tensors_in((args, outputs)):
        if tensor.is_floating_point():
            return tensor.dtype
    return None


def is_cast(function: Any, args: Sequence[Any], outputs: Any) -> bool:
    """Whether the operation turns floating-point numbers of one dtype into another."""
    if function.overloadpacket not in (_aten._to_copy, _aten.to):  # noqa: SLF001
        return False
    source = args[0]
    return bool(source.is_floating_point() and outputs.dtype != source.dtype)


def count_flops(function: Any, args: Sequence[Any], outputs: Any) -> int:
    """Return the floating-point operations of one call.

    Products, convolutions, attention and recurrent layers by their formulas, a multiplication and
    an addition counting as two; others as one per output element.
    """
    packet = function.overloadpacket
    if packet in formulas():
        return formulas()[packet](args, outputs)
    return _per_element(outputs)


def _per_element(outputs: Any) -> int:
    return sum(tensor.numel() for tensor in tensors_in(outputs) if tensor.is_floating_point())


def computes(function: Any) -> bool:
    """Whether the operation calculates at all; others move, make or look at data."""
    name: str = function._schema.name  # noqa: SLF001 - torch has no other way to ask
    is_free = function.overloadpacket in _free_operations() or _is_view(function)
    return not is_free and name.partition("::")[0] not in _NO_COMPUTATION


def _is_view(function: Any) -> bool:
    """Whether all that an operation returns shares memory with what it got, unchanged."""
    returns = function._schema.returns  # noqa: SLF001 - torch has no other way to ask
    aliases = [value.alias_info for value in returns]
    return bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)


@cache
def _free_operations() -> frozenset[Any]:
    """Return those of the operations without arithmetic that this torch has."""
    return frozenset(getattr(_aten, name) for name in _FREE if hasattr(_aten, name))


_FREE = (
    "_to_copy", "to", "clone", "copy", "copy_", "_copy_from", "_copy_from_and_resize", "contiguous",
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided",
    "zeros", "zeros_like", "new_zeros", "zero_", "ones", "ones_like", "new_ones",
    "full", "full_like", "new_full", "fill_", "scalar_tensor", "arange", "lift_fresh",
    "cat", "stack", "_local_scalar_dense", "index", "index_select", "gather", "embedding",
    "constant_pad_nd", "slice_backward", "select_backward", "unfold_backward", "isnan", "isinf",
    "split_with_sizes_copy", "_chunk_cat", "_foreach_copy_", "_unsafe_view", "_reshape_alias",
    "resize_", "set_",
)  # fmt: skip
