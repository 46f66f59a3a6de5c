"""Warn about gradients that were made, stepped or zeroed past the wrapper."""

import logging
from typing import Any

import torch
from torch import Tensor, nn

from ._first_fsdp import contains_first_fsdp

_logger = logging.getLogger(__name__)
_NUM_MARKED = 16  # whoever steps past the wrapper does so from the start


class GradientWatch:
    """Looks whether one parameter has a gradient when it should; never at values.

    Attributes:
        probe: The first trainable parameter: a loss through the model's inputs reaches it.
        expects_none: True once the wrapper has zeroed its gradient, False while it holds one of
            the wrapper's own backward, None where either may be, as at the start.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        trained = [one for one in parameters if one.requires_grad]
        self.probe: Tensor = (trained or parameters or [nn.Parameter(torch.empty(0))])[0]
        self.expects_none: bool | None = None
        self._optimizer = optimizer
        self._mark: list[int] | None = None
        self._num_marked = 0
        self._has_warned_of_zeroing = False

    def check(self, model: Any) -> None:
        """Warn, once, if something else happened to the gradients since the wrapper saw them."""
        if self.expects_none is None:
            return
        if self.probe.grad is None:
            is_past = not self.expects_none
        elif self.expects_none:
            self._warn(
                model,
                "There are gradients at the start of this step that no backward of this wrapper "
                "made; the optimizer steps with them too. If the loss of another optimizer reached "
                "these parameters, as a generator's reaches its discriminator, call zero_grad() of "
                "this wrapper before its part of the step.",
            )
            return
        else:
            is_past = self._mark is not None and self._mark != self._versions()
        if is_past:
            self._warn(
                model,
                "The gradients of this wrapper's backward were stepped or zeroed by another call "
                "than its own, such as optimizer.step() or optimizer.zero_grad(), which knows of "
                "no loss scale, clipping or accumulation. Call step() and zero_grad() of the "
                "wrapper, or update_params() alone.",
            )

    def note_backward(self) -> None:
        """Remember that the wrapper's own backward has left a gradient, if it has."""
        if self.probe.grad is None:
            return
        self.expects_none = False
        self._mark = None
        if self._num_marked < _NUM_MARKED:
            self._num_marked += 1
            self._mark = self._versions()

    def note_zeroed(self) -> None:
        """Remember that the wrapper zeroed the gradients, if that has left none."""
        self.expects_none = True if self.probe.grad is None else None

    def warn_of_zeroing(self, window: int) -> None:
        """Warn, once, that gradients are zeroed before their window is full."""
        if not self._has_warned_of_zeroing:
            self._has_warned_of_zeroing = True
            _logger.warning(
                "zero_grad() was called in the middle of an accumulation window of %d "
                "micro-batches: what the earlier ones have added is lost, and the step of this "
                "window is too small. update_params() zeroes gradients after each step by itself.",
                window,
            )

    def _versions(self) -> list[int]:
        """Return what changes with a step: counters of the state, or of the parameter without."""
        state = self._optimizer.state.get(self.probe) or {"": self.probe}
        return [one._version for one in state.values() if isinstance(one, Tensor)]  # noqa: SLF001

    def _warn(self, model: Any, message: str) -> None:
        self.probe = nn.Parameter(torch.empty(0))  # never has a gradient: nothing more is found
        self.expects_none = True
        if not contains_first_fsdp(model):  # which puts gradients aside by itself
            _logger.warning(message)
