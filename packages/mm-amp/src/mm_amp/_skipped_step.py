"""What those who look for the cause of a skipped step are told."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ._parameter_names import owned_parameters


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

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the optimizer's parameters with their names in the model.

        Without a model, or if it does not hold the parameter, the name is its place in the
        optimizer, such as ``param_groups[0][3]``.
        """
        for one in owned_parameters(self.optimizer, self.model):
            yield one.name, one.parameter
