"""Gradient accumulation: count micro-batches, and weight them by their size.

With micro-batches ``i`` on ranks ``r`` of weight ``n`` and mean loss ``l``, one big batch has the
loss ``sum(n * l) / sum(n)`` over all of them. The denominator is known only at the end of the
window, so each loss is first multiplied by ``n / expected`` and the gradients at last by
``expected / (sum(n) / number of ranks)``; the gradient exchange has divided by their number.
``expected`` is the sum of the previous window: gradients have their final magnitude all the time,
and float16 does not overflow.
"""

import logging
from typing import Any

import torch
from torch import Tensor, nn

from mm_amp._checks import check_count, check_weight
from mm_amp._errors import ConfigError
from mm_amp._gradients._norms import scale_gradients
from mm_amp._gradients._sync import AveragingRanks
from mm_amp._model._parameters import parameters_of

_logger = logging.getLogger(__name__)
_TINY = 1e-30  # instead of dividing by 0 where everything has weight 0
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class MicroBatches:
    """Counter of micro-batches, ``window`` of which make one optimizer step.

    Args:
        window: Micro-batches per optimizer step, at least 1.

    Attributes:
        done: Micro-batches whose backward is done.
    """

    def __init__(self, window: int) -> None:
        self.window = check_count("accumulative_counts", window, least=1)
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
                "together, or call it again with the remaining number.",
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

    def warn_about_differences(self, model: nn.Module) -> None:
        """Warn where accumulation will not equal one big batch."""
        if self.done % self.window != 0:
            _logger.warning(
                "Training starts at micro-batch %d, which accumulative_counts=%d does not divide: "
                "the gradients of the earlier micro-batches of this window are missing, unless "
                "the end of a training has stepped with them.",
                self.done,
                self.window,
            )
        if self.window > 1 and any(isinstance(one, _BATCH_NORMS) for one in model.modules()):
            _logger.warning(
                "The model has BatchNorm layers and accumulative_counts is %d: their statistics "
                "come from one micro-batch each, so the result differs from one big batch.",
                self.window,
            )


class WindowWeights:
    """Weights of the micro-batches in one window, applied to losses and gradients.

    Attributes:
        is_weighted: Whether the run so far was weighted; ``None`` before its first micro-batch.
        num_due: Micro-batches whose gradients wait for ``correct_gradients``.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget the run so far, and whether it was weighted."""
        self.is_weighted: bool | None = None
        self._ranks: AveragingRanks | None = None
        self._usual: Tensor | None = None  # weight of a micro-batch, mean over all ranks
        self._expected: Any = None  # of the present window, and what came of it so far
        self._sum: Any = None
        self.num_due = 0

    def check_use(self, *, is_weighted: bool) -> None:
        """Raise if weighted and unweighted micro-batches are mixed.

        Raises:
            ConfigError: If they are.
        """
        if self.is_weighted is None:
            self.is_weighted = is_weighted
        if self.is_weighted != is_weighted:
            given, before = ("has a", "no") if is_weighted else ("has no", "a")
            raise ConfigError(
                f"this micro-batch {given} weight, and those before had {before} weight; give a "
                "weight in every call, update_params(loss, weight=n), or in none."
            )

    def weigh(self, loss: Tensor, weight: Any, window: int, model: Any) -> tuple[Tensor, Any]:
        """Return ``loss`` times its share of the window, and the weight for ``count``.

        Args:
            loss: The mean over ``weight`` samples or tokens.
            weight: At least 0; a number, or a 0-d tensor on any device.
            window: Micro-batches in this window.
            model: The model of the last forward.
        """
        if self._ranks is None or self._ranks.model is not model:
            self._ranks = AveragingRanks(model)
        share = check_weight(weight)
        if isinstance(share, Tensor):
            share = share.detach().reshape(()).to(loss.device, torch.float32, non_blocking=True)
        else:
            share = torch.full((), share, dtype=torch.float32, device=loss.device)
        if window == 1:  # known as a whole: gradients need no correction
            return _times(loss, share / self._mean_over_ranks(share).clamp(min=_TINY)), None
        if self.num_due == 0:
            usual = self._mean_over_ranks(share) if self._usual is None else self._usual
            self._expected = usual.masked_fill(usual == 0, 1.0) * window
        return _times(loss, share / self._expected), share

    def count(self, share: Any) -> None:
        """Count the weight of a micro-batch whose backward is done."""
        if share is not None:
            self._sum = self._sum + share if self.num_due else share
            self.num_due += 1

    def correct_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        """Turn the gradients of a full window into those of one big batch."""
        mean_sum = self._mean_over_ranks(self._sum)  # the window's only exchange
        factor = self._expected / mean_sum.clamp(min=_TINY)
        # A window of weight 0 says nothing about the next: keep the previous expectation.
        self._usual = torch.where(mean_sum > 0, mean_sum, self._expected) / self.num_due
        self.num_due = 0
        gradients = [one.grad for one in parameters_of(optimizer) if one.grad is not None]
        with torch.no_grad():
            scale_gradients(gradients, factor)

    def _mean_over_ranks(self, value: Any) -> Any:
        assert self._ranks is not None
        if self._ranks.is_alone:
            return value
        return self._ranks.all_reduce(value.clone()) / self._ranks.count


def _times(loss: Tensor, factor: Tensor) -> Tensor:
    """Return ``loss * factor``, and 0 for a factor of 0: a mean over no samples is NaN."""
    factor = factor.to(loss.dtype)  # two 0-d tensors would compute in the wider dtype of both
    return (loss * factor).masked_fill(factor == 0, 0.0)
