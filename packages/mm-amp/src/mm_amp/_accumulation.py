"""Count micro-batches: when to step, and how much each one weighs."""

import logging

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ._checks import check_count, check_positive_int

_logger = logging.getLogger(__name__)


class MicroBatches:
    """Where we are among the micro-batches, ``window`` of which make one optimizer step.

    Args:
        window: Micro-batches per optimizer step, at least 1.

    Attributes:
        done: Micro-batches whose backward is done.
    """

    def __init__(self, window: int) -> None:
        self.window = check_positive_int("accumulative_counts", window)
        self.done = 0
        self._total: int | None = None
        self._has_warned = False

    def expect(self, done: int, total: int) -> None:
        """Start at ``done`` of ``total`` micro-batches, so that the last, short window is known."""
        done, total = check_count("init_counts", done), check_count("max_counts", total)
        self.done, self._total = done, total

    def ends_window(self, done: int) -> bool:
        """Whether the optimizer is due once ``done`` micro-batches are done."""
        if self._total is None or done <= self._total or self.window == 1:
            return done % self.window == 0 or done == self._total
        if not self._has_warned:
            self._has_warned = True
            _logger.warning(
                "There are more micro-batches than max_counts=%d: full windows of %d are counted "
                "from there on. Give initialize_count_status the micro-batches of all epochs "
                "together, or call it again with what is left.",
                self._total,
                self.window,
            )
        return (done - self._total) % self.window == 0

    @property
    def current_window(self) -> int:
        """Micro-batches in the window that the next backward belongs to."""
        if self._total is None or self.window == 1:
            return self.window
        remainder = self._total % self.window
        in_last_window = self._total - remainder <= self.done < self._total
        return remainder if in_last_window else self.window


def warn_about_accumulation(model: nn.Module, init_counts: int, window: int) -> None:
    """Warn where accumulation will not equal one big batch."""
    if init_counts % window != 0:
        _logger.warning(
            "Training goes on at micro-batch %d, which accumulative_counts=%d does not divide: its "
            "first step uses the batches that are left of the window only. The gradients of those "
            "before are missing, unless the end of a training has stepped with them.",
            init_counts,
            window,
        )
    if window > 1 and any(isinstance(module, _BatchNorm) for module in model.modules()):
        _logger.warning(
            "The model has BatchNorm layers and accumulative_counts is %d: their statistics come "
            "from one micro-batch each, so the result differs from one big batch.",
            window,
        )
