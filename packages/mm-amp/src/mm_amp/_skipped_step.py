"""What those who look for the cause of a skipped step are told."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class SkippedStep:
    """A step that was left out, as those who look for its cause are told.

    They are told before gradients are zeroed, and after the loss scale was taken out of them where
    the wrapper does that.

    Attributes:
        optimizer: Whose step it was.
        model: The model last given to ``optim_context``, or ``None``.
        loss_scale: The factor that the loss of *this* step was multiplied with.
        num_in_a_row: How many steps in a row were skipped, this one included.
        is_late: Whether it is the step *before* this one that was skipped, and gradients are
            therefore those of the step after: a fused optimizer decides on the device.
    """

    optimizer: torch.optim.Optimizer
    model: Any
    loss_scale: float | Tensor
    num_in_a_row: int
    is_late: bool
