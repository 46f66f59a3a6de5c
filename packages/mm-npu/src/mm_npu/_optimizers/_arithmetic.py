"""In-place arithmetic of an update, where a factor is a float or a tensor with one element.

A tensor is what a learning rate is that stays on the device, and what every number that changes
from step to step is in a compiled step: a float would compile it anew. In-place methods of torch
take floats only for ``value`` and ``alpha``.
"""

import torch
from torch import Tensor

_SLOW = 0.5  # decays from here on divide a number without making it large


def add_scaled(target: Tensor, source: Tensor, factor: float | Tensor, spare: Tensor) -> None:
    """Add ``factor * source`` to ``target``; ``spare`` may be ``source``."""
    if isinstance(factor, Tensor):
        target.add_(torch.mul(source, factor, out=spare))
    else:
        target.add_(source, alpha=factor)


def add_ratio(
    target: Tensor, numerator: Tensor, denominator: Tensor, factor: float | Tensor
) -> None:
    """Add ``factor * numerator / denominator`` to ``target``; ``denominator`` is used up."""
    if isinstance(factor, Tensor):
        target.add_(torch.div(numerator, denominator, out=denominator).mul_(factor))
    else:
        target.addcdiv_(numerator, denominator, value=factor)


def move_average(average: Tensor, value: Tensor, decay: float) -> None:
    """Let ``average`` decay, and take ``value`` in for what it lost."""
    average.lerp_(value, 1 - decay)


def move_average_of_squares(average: Tensor, value: Tensor, decay: float) -> None:
    """Let ``average`` decay, and take the square of ``value`` in for what it lost."""
    if decay < _SLOW:
        average.mul_(decay).addcmul_(value, value, value=1 - decay)
    else:  # what comes from memory comes together, and what is left finds it in the cache
        average.addcmul_(value, value, value=(1 - decay) / decay).mul_(decay)


def prepare_gradient(
    gradient: Tensor, p: Tensor, weight_decay: float, scale: Tensor | None, spare: Tensor
) -> Tensor:
    """Return ``scale * gradient + weight_decay * p``, in ``spare`` if that is not ``gradient``."""
    if scale is not None:
        gradient = torch.mul(gradient, scale, out=spare)
    if weight_decay != 0:
        gradient = torch.add(gradient, p, alpha=weight_decay, out=spare)
    return gradient
