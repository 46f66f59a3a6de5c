"""Which parameters have a gradient between two steps.

An optimizer steps over a parameter without a gradient. Over one whose gradient is zero it does not:
momentum and weight decay move it on. Where gradients are set to zero in place, as by
``zero_grad(set_to_none=False)`` and by optimizers that read them from one packed tensor, a
parameter that takes no part in the step to come has one all the same, if it took part before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from mm_runner.model import unwrap_model

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from torch import nn

__all__ = ["ZEROED_GRADIENTS", "restore_zeroed_gradients", "zeroed_gradients"]

# Key of the checkpoint.
ZEROED_GRADIENTS = "zeroed_gradients"


def zeroed_gradients(model: nn.Module) -> list[str]:
    """Return the names of the parameters that have a gradient.

    Args:
        model: Between two steps: what gradients there are were used, or are zero.
    """
    return [name for name, one in _named_parameters(model) if one.grad is not None]


def restore_zeroed_gradients(model: nn.Module, names: Collection[str]) -> None:
    """Give gradients of zero to parameters of these names that have none."""
    wanted = set(names)
    for name, parameter in _named_parameters(model):
        if name in wanted and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)


def _named_parameters(model: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, parameter in unwrap_model(model).named_parameters():
        yield name.replace("_orig_mod.", ""), parameter
