"""Which parameters have a gradient between two steps.

An optimizer steps over a parameter without a gradient. Over one whose gradient is zero it does not:
momentum and weight decay move it on. Where gradients are set to zero in place, as by
``zero_grad(set_to_none=False)`` and by optimizers that read them from one packed tensor, a
parameter that takes no part in the step to come has one all the same, if it took part before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ._steps import unwrap_model

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor, nn

__all__ = ["ZEROED_GRADIENTS", "restore_zeroed_gradients", "zeroed_gradients"]

# Key of the checkpoint.
ZEROED_GRADIENTS = "zeroed_gradients"


def zeroed_gradients(model: nn.Module) -> dict[str, bool]:
    """Return the names of the parameters that have a gradient, and whether it is a sparse one.

    Args:
        model: Between two steps: what gradients there are were used, or are zero.
    """
    return {
        name: one.grad.layout is torch.sparse_coo
        for name, one in _named_parameters(model)
        if one.grad is not None
    }


def restore_zeroed_gradients(model: nn.Module, zeroed: Mapping[str, bool]) -> None:
    """Give gradients of zero to those parameters that have none; see :func:`zeroed_gradients`."""
    for name, parameter in _named_parameters(model):
        if name in zeroed and parameter.grad is None:
            parameter.grad = (
                _without_rows(parameter) if zeroed[name] else torch.zeros_like(parameter)
            )


def _without_rows(parameter: Tensor) -> Tensor:
    # Optimizers for sparse gradients take no dense ones. Torch's constructor of sparse tensors
    # warns, or wants an argument that older versions have not.
    none = parameter.detach()[:1].to_sparse(1).zero_()
    return none.sparse_resize_(parameter.shape, 1, parameter.ndim - 1)


def _named_parameters(model: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, parameter in unwrap_model(model).named_parameters():
        yield name.replace("_orig_mod.", ""), parameter
