"""Checks of parameters and gradients that ``torch_npu``'s own optimizers pack."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mm_npu._errors import ConfigError, FusedOptimizerError, UntrainedParameterWarning
from mm_npu._torch_private import is_flattened, is_view

from ._checks import check_dense_gradients, is_sharded

_DTYPES = (torch.float32, torch.float16)
_NUM_NAMED = 10


class Trained(NamedTuple):
    """A parameter that requires gradients, and its name in messages."""

    parameter: Tensor
    name: str


def trained_parameters(optimizer: Any) -> Iterator[Trained]:
    """Yield the parameters that require gradients, in the optimizer's order.

    Their names are those in ``param_groups``, from torch 2.6 on, or their place there.
    """
    for group_index, group in enumerate(optimizer.param_groups):
        names = group.get("param_names")
        for index, p in enumerate(group["params"]):
            name = f"param_groups[{group_index}][{index}]" if names is None else names[index]
            if p.requires_grad:
                yield Trained(p, f"{name} of shape {tuple(p.shape)}")


def check_parameters(optimizer: str, trained: Iterable[Trained]) -> None:
    """Check that parameters can be packed."""
    for p, name in trained:
        if is_sharded(p) or is_flattened(p):
            raise ConfigError(
                f"{optimizer} was given {name}, which is sharded over ranks; torch_npu packs "
                "parameters into one buffer, which is incompatible with sharding. Train with "
                "MMDistributedDataParallel, or with an optimizer of torch such as "
                "torch.optim.AdamW."
            )
        if p.dtype not in _DTYPES:
            raise ConfigError(
                f"{optimizer} was given {name} and {p.dtype}; on an NPU it takes float32 and "
                "float16. Keep the parameters in float32 and compute in bfloat16 under autocast "
                "(AmpOptimWrapper with dtype='bfloat16'), or take an optimizer of torch such as "
                "torch.optim.AdamW."
            )


def prepare_gradients(optimizer: str, packed: Sequence[Trained]) -> None:
    """Check that gradients can be packed, and give each its own memory.

    ``torch_npu`` takes the whole memory of a gradient for its size. Backward of a concatenation,
    for one, leaves gradients that are pieces of one memory.
    """
    check_dense_gradients(optimizer, [p for p, _ in packed])
    for p, name in packed:
        gradient = p.grad
        assert gradient is not None
        if is_view(gradient):
            raise FusedOptimizerError(
                f"{optimizer} found a gradient of {name} that is a view of a common buffer, as DDP "
                "makes them; torch_npu moves gradients to its own buffer, and would not see later "
                "ones. Build DDP with gradient_as_bucket_view=False."
            )
        if _memory_size(gradient) != gradient.numel():
            p.grad = gradient.clone()


def warn_untrained(optimizer: str, left_out: Sequence[Trained]) -> None:
    """Warn of parameters that have no gradient when the others are packed."""
    names = ", ".join(each.name for each in left_out[:_NUM_NAMED])
    more = len(left_out) - _NUM_NAMED
    message = (
        f"{optimizer} packs its parameters now, and {len(left_out)} that require gradients have "
        f"none: {names}{f' and {more} more' if more > 0 else ''}; torch_npu will never train them. "
        "Freeze those that are not to be trained (requires_grad=False), and give the others "
        "p.grad = torch.zeros_like(p) before the first step."
    )
    warnings.warn(message, UntrainedParameterWarning, stacklevel=2)


def _memory_size(tensor: Tensor) -> int:
    """Return how many elements the memory of a tensor has room for."""
    # torch before 2.0 knows no untyped_storage, and from there on warns of storage.
    num_bytes: int = getattr(tensor, "untyped_storage", tensor.storage)().nbytes()
    return num_bytes // tensor.element_size()
