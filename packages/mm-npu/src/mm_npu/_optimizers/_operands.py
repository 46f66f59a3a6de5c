"""What an update works on, and how much of it at once."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

# Bytes of an operand that are updated at once. On a CPU per thread: the half dozen operands of a
# rule fit into a core's second cache, and torch's kernels, which give a thread no less than 32768
# elements, use all threads. On an accelerator, which wants few and long kernels, it only bounds the
# temporaries.
_BLOCK_ON_CPU, _BLOCK_ON_DEVICE = 2**18, 2**24
_HALVES = (torch.float16, torch.bfloat16)


class Operands(NamedTuple):
    """What an update rule works on: tensors of one shape."""

    p: Tensor
    gradient: Tensor
    state: dict[str, Tensor]


class Layout(NamedTuple):
    """What a rule asks of its operands.

    ``names`` says which tensors of the state it wants, ``shape(count, p)`` in which shape it wants
    ``count`` parameters like ``p`` (None: flat, and of whatever shapes), and ``equal_steps``
    whether they must be in the same step.
    """

    names: tuple[str, ...]
    shape: Callable[[int, Tensor], tuple[int, ...]] | None
    equal_steps: bool


def block_size(p: Tensor) -> int:
    """Return how many elements of tensors like ``p`` are updated at once."""
    on_cpu = p.device.type == "cpu"
    size = _BLOCK_ON_CPU * torch.get_num_threads() if on_cpu else _BLOCK_ON_DEVICE
    return size // max(4, p.element_size())  # halves are computed with in float32


def computing_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return what parameters of ``dtype`` are computed with in: float32 for the halves."""
    return torch.float32 if dtype in _HALVES else dtype


def is_sharded(p: Any) -> bool:
    """Say whether ``p`` is a DTensor, of which this rank has a part."""
    return type(p) is not torch.nn.Parameter and hasattr(p, "to_local")


def is_flattened(p: Tensor) -> bool:
    """Say whether torch's first FSDP manages ``p``: as a flat parameter, or as a piece of one."""
    # The marks that it looks for itself, of parameters it was given and of those it has made.
    return any(getattr(p, mark, False) for mark in ("_fsdp_flattened", "_is_flat_param"))


def local(tensor: Any) -> Tensor:
    """Return this rank's part of a DTensor, and any other tensor itself."""
    part: Tensor = tensor.to_local() if is_sharded(tensor) else tensor
    return part


def is_dense(p: Tensor) -> bool:
    """Say whether the elements of ``p`` fill its memory, in whatever order."""
    return p.permute(memory_order(p)).is_contiguous()


def memory_order(p: Tensor) -> tuple[int, ...]:
    """Return the dimensions from the slowest to the fastest in memory.

    A dense tensor is contiguous when it is permuted so; weights in channels_last are dense.
    """
    if p.is_contiguous():
        return tuple(range(p.dim()))
    return tuple(sorted(range(p.dim()), key=p.stride, reverse=True))
