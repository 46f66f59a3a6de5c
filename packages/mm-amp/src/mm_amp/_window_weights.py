"""Weigh micro-batches by what is in them, so that a ragged window equals one big batch.

With micro-batches ``i`` on ranks ``r`` of weight ``n`` and mean loss ``l``, one big batch has the
loss ``sum(n * l) / sum(n)`` over all of them. The denominator is known only when the last one has
come, so each loss is first multiplied by ``n / expected`` and the gradients at last by
``expected / (sum(n) / number of ranks)``; the exchange between ranks has divided by their number.
``expected`` is what the window before led to expect: gradients are as large as those of the big
batch all the time, and nothing overflows in float16.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ._averaging_ranks import AveragingRanks
from ._checks import check_weight
from ._errors import ConfigError
from ._parameters import local_gradients

_TINY = 1e-30  # instead of dividing by 0 where everything has weight 0


class WindowWeights:
    """The weights of the micro-batches in one window, and what they make of loss and gradients.

    Attributes:
        is_weighted: Whether the run so far was weighted; ``None`` before its first micro-batch.
        num_due: Micro-batches whose gradients wait for ``correct_gradients``.
    """

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget the run so far, and whether it was weighted."""
        self.is_weighted: bool | None = None
        self._ranks: AveragingRanks | None = None
        self._model: Any = None
        self._usual: float | Tensor | None = None  # weight of a micro-batch, mean over all ranks
        self._expected: float | Tensor = 1.0
        self._sum: float | Tensor = 0.0
        self.num_due = 0

    def remember(self) -> dict[str, Any]:
        """Return all of this as it is now, for ``go_back``; no tensor of it is changed in place."""
        return dict(vars(self))

    def go_back(self, remembered: Mapping[str, Any]) -> None:
        """Be again as it was when ``remember`` was called."""
        vars(self).update(remembered)

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
                f"this micro-batch {given} weight, and those before had {before} weight; one run "
                "weighs all of them (update_params(loss, weight=n)) or none."
            )

    def weigh(self, loss: Tensor, weight: Any, window: int, model: Any) -> Tensor:
        """Return ``loss`` times its share of the window.

        Args:
            loss: The mean over what ``weight`` counts.
            weight: At least 0; a number, or a 0-d tensor on any device.
            window: Micro-batches in this window.
            model: What the forward ran through.
        """
        ranks = self._ranks_of(model)
        share = _share(check_weight(weight), loss.device, ranks)
        if window == 1:  # known as a whole: gradients need no correction
            return _times(loss, share / _at_least_tiny(_mean_over(ranks, share)))
        if self.num_due == 0:
            usual = _mean_over(ranks, share) if self._usual is None else self._usual
            self._expected = _or_one(usual) * window
        self._sum = self._sum + share
        self.num_due += 1
        return _times(loss, share / self._expected)

    def correct_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        """Turn the gradients of a full window into those of one big batch, if any are due."""
        assert self._ranks is not None
        mean_sum = _mean_over(self._ranks, self._sum)  # the window's only exchange
        factor = self._expected / _at_least_tiny(mean_sum)
        self._usual = _or_before(mean_sum / self.num_due, self._usual)
        self._sum, self.num_due = 0.0, 0
        with torch.no_grad():
            _multiply(local_gradients(optimizer), factor)

    def _ranks_of(self, model: Any) -> AveragingRanks:
        if self._ranks is None or model is not self._model:
            self._model, self._ranks = model, AveragingRanks(model)
        return self._ranks


def _share(weight: float | Tensor, device: torch.device, ranks: AveragingRanks) -> float | Tensor:
    """Return the weight as a float if it never has to leave the host, else on ``device``."""
    if isinstance(weight, Tensor):
        return weight.detach().reshape(()).to(device, torch.float32, non_blocking=True)
    if ranks.is_alone:
        return weight
    return torch.full((), weight, dtype=torch.float32, device=device)


def _mean_over(ranks: AveragingRanks, value: float | Tensor) -> float | Tensor:
    if ranks.is_alone:
        return value
    assert isinstance(value, Tensor)
    return ranks.add_up(value.clone()) / ranks.count


def _at_least_tiny(value: float | Tensor) -> float | Tensor:
    return value.clamp(min=_TINY) if isinstance(value, Tensor) else max(value, _TINY)


def _or_one(value: float | Tensor) -> float | Tensor:
    if isinstance(value, Tensor):
        return torch.where(value > 0, value, torch.ones_like(value))
    return value or 1.0


def _or_before(value: float | Tensor, before: float | Tensor | None) -> float | Tensor | None:
    """Return ``value``, or if it is 0, what there was before: nothing is learnt from a window of 0.

    Else the next window would expect next to nothing, and overflow in float16.
    """
    if isinstance(value, Tensor):
        before = torch.ones_like(value) * (1.0 if before is None else before)
        return torch.where(value > 0, value, before)
    return value or before


def _times(loss: Tensor, factor: float | Tensor) -> Tensor:
    """Return ``loss * factor``, and 0 for a factor of 0: a mean over no samples is NaN."""
    if not isinstance(factor, Tensor):
        return loss * factor if factor else (loss * factor).nan_to_num(nan=0.0)
    factor = factor.to(loss.dtype)  # two 0-d tensors would compute in the wider dtype of both
    return (loss * factor).masked_fill(factor == 0, 0.0)


def _multiply(gradients: list[Tensor], factor: float | Tensor) -> None:
    if isinstance(factor, float):
        if factor != 1.0 and gradients:
            torch._foreach_mul_(gradients, factor)
        return
    by_device: dict[torch.device, list[Tensor]] = {}
    for gradient in gradients:
        by_device.setdefault(gradient.device, []).append(gradient)
    for device, there in by_device.items():
        _multiply_by_tensor(there, factor.to(device, non_blocking=True))


def _multiply_by_tensor(gradients: list[Tensor], factor: Tensor) -> None:
    if hasattr(torch.ops.aten._foreach_mul_, "Tensor"):  # torch 2.1
        torch._foreach_mul_(gradients, factor)
        return
    for gradient in gradients:
        gradient.mul_(factor)
