"""Weighted gradient accumulation: micro-batches that count by their size.

With micro-batches ``i`` on ranks ``r`` of weight ``n`` and mean loss ``l``, one big batch has the
loss ``sum(n * l) / sum(n)`` over all of them. The denominator is known only at the end of the
window, so each loss is first multiplied by ``n / expected`` and the gradients at last by
``expected / (sum(n) / number of ranks)``; the gradient exchange has divided by their number.
``expected`` is the sum of the previous window: gradients have their final magnitude all the time,
and float16 does not overflow.
"""

import math
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from mm_amp._errors import ConfigError, ConfigTypeError
from mm_amp._gradients._norms import scale_gradients
from mm_amp._gradients._sync import AveragingRanks

_TINY = 1e-30  # instead of dividing by 0 where everything has weight 0


class WindowWeights:
    """Weights of the micro-batches in one window, applied to losses and gradients.

    Attributes:
        num_due: Micro-batches whose gradients wait for ``correct_gradients``.
    """

    def __init__(self) -> None:
        self._ranks: AveragingRanks | None = None
        self._usual: Tensor | None = None  # weight of a micro-batch, mean over all ranks
        self._expected: Any = None  # of the present window, and what came of it so far
        self._sum: Any = None
        self.num_due = 0

    def weigh(self, loss: Tensor, weight: Any, window: int, model: Any) -> tuple[Tensor, Any]:
        """Return ``loss`` times its share of the window, and the weight for ``count``."""
        if self._ranks is None or self._ranks.model is not model:
            self._ranks = AveragingRanks(model)
        share = _as_tensor(weight, loss.device)
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
        groups = optimizer.param_groups
        gradients = [p.grad for group in groups for p in group["params"] if p.grad is not None]
        with torch.no_grad():
            scale_gradients(gradients, factor)

    def _mean_over_ranks(self, value: Any) -> Any:
        assert self._ranks is not None
        if self._ranks.count == 1:
            return value
        return self._ranks.all_reduce(value.clone()) / self._ranks.count


def _as_tensor(weight: object, device: torch.device) -> Tensor:
    """Return a weight as a 0-d float32 tensor; the value of a tensor is not read."""
    if isinstance(weight, Tensor):
        if weight.numel() != 1 or weight.is_complex():
            raise ConfigError(
                f"weight has shape {tuple(weight.shape)} and dtype {weight.dtype}; it must be one "
                "real number, such as the number of samples or tokens behind the loss."
            )
        return weight.detach().reshape(()).to(device, torch.float32, non_blocking=True)
    if isinstance(weight, bool) or not isinstance(weight, Real):
        raise ConfigTypeError(
            f"weight is {weight!r}; it must be a number or a 0-d tensor, such as the number of "
            "samples or tokens behind the loss."
        )
    number = float(weight)
    if not 0 <= number < math.inf:
        raise ConfigError(f"weight is {weight!r}; it must be finite and at least 0.")
    return torch.full((), number, dtype=torch.float32, device=device)


def _times(loss: Tensor, factor: Tensor) -> Tensor:
    """Return ``loss * factor``, and 0 for a factor of 0: a mean over no samples is NaN."""
    factor = factor.to(loss.dtype)  # two 0-d tensors would compute in the wider dtype of both
    return (loss * factor).masked_fill(factor == 0, 0.0)
