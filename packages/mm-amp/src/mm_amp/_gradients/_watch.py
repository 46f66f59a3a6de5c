"""Warnings about gradients that were made, stepped or zeroed without the wrapper."""

import logging

import torch
from torch import Tensor, nn

from mm_amp._torch_private import versions_of

_logger = logging.getLogger(__name__)
_NUM_MARKED = 16  # a loop that steps without the wrapper does so from the start


class GradientWatch:
    """Checks whether one parameter has a gradient when it should; never reads values.

    Attributes:
        expects_none: True once the wrapper has zeroed the gradient, False while it holds one of
            the wrapper's own backward, None where either may be, as at the start.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        trained = [one for one in parameters if one.requires_grad]
        # The first trainable one: a loss through the model's inputs reaches it.
        self._probe: Tensor = (trained or parameters or [nn.Parameter(torch.empty(0))])[0]
        self.expects_none: bool | None = None
        self._optimizer = optimizer
        self._mark: list[int] | None = None
        self._num_marked = 0

    def check(self) -> None:
        """Warn, once, if gradients changed without the wrapper."""
        if self.expects_none is None:
            return
        if self.expects_none and self._probe.grad is not None:
            message = (
                "There are gradients at the start of this step that no backward of this wrapper "
                "made; the optimizer steps with them too. If the loss of another optimizer reached "
                "these parameters, as a generator's reaches its discriminator, call zero_grad() of "
                "this wrapper before its part of the step."
            )
        elif not self.expects_none and (
            self._probe.grad is None
            or (self._mark is not None and self._mark != versions_of(self._optimizer, self._probe))
        ):
            message = (
                "The gradients of this wrapper's backward were stepped or zeroed by another call "
                "than its own, such as optimizer.step() or optimizer.zero_grad(), which ignores "
                "loss scale, clipping and accumulation. Call step() and zero_grad() of the "
                "wrapper, or update_params() alone."
            )
        else:
            return
        self._probe = nn.Parameter(torch.empty(0))  # never has a gradient: nothing more is found
        self.expects_none = True
        _logger.warning(message)

    def note_backward(self) -> None:
        """Record that the wrapper's own backward has left a gradient, if it has."""
        if self._probe.grad is None:
            return
        self.expects_none = False
        self._mark = None
        if self._num_marked < _NUM_MARKED:
            self._num_marked += 1
            self._mark = versions_of(self._optimizer, self._probe)

    def note_zeroed(self) -> None:
        """Record that the wrapper zeroed the gradients."""
        self.expects_none = True if self._probe.grad is None else None
