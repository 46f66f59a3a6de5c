"""In-place arithmetic of the update rules.

A factor is a number, or a tensor that broadcasts: a learning rate may stay on its device.
"""

import torch
from torch import Tensor


def add_scaled_(target: Tensor, source: Tensor, factor: float | Tensor) -> None:
    """Add ``factor * source`` to ``target``."""
    if isinstance(factor, Tensor):
        target.add_(source * factor)
    else:
        target.add_(source, alpha=factor)


def add_ratio_(
    target: Tensor, numerator: Tensor, denominator: Tensor, factor: float | Tensor
) -> None:
    """Add ``factor * numerator / denominator`` to ``target``."""
    if isinstance(factor, Tensor):
        target.add_(torch.div(numerator, denominator).mul_(factor))
    else:
        target.addcdiv_(numerator, denominator, value=factor)


def add_decay(gradient: Tensor, p: Tensor, weight_decay: float) -> Tensor:
    """Return ``gradient + weight_decay * p``; the gradient itself is not changed."""
    return gradient if weight_decay == 0 else gradient.add(p, alpha=weight_decay)
