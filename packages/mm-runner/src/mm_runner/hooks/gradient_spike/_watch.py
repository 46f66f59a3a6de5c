"""Which steps of one optimizer had a spike, kept on the device until it is asked for."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from ._norms import group_gradients, group_norms

__all__ = ["Spike", "SpikeWatch"]


class Spike(NamedTuple):
    """One step and parameter group.

    Attributes:
        step: Number of the training step, from 1.
        group: Index of the parameter group.
        norm: Of its gradients.
        usual: Running mean of that before.
    """

    step: int
    group: int
    norm: float
    usual: float


class SpikeWatch:
    """Looks at the gradients of one optimizer before each of its steps.

    The running means leave out what was a spike, so that one does not hide the next. Nothing is
    read from the device but by :meth:`read`.

    Args:
        optimizer: Watched until :meth:`remove`.
        factor: Times its running mean a group's norm is a spike.
        momentum: Weight of a new norm in the running mean.
        warmup: Steps of the optimizer before the first that can be one.
        skips: Whether to set the gradients of a step with a spike to zero.
        before_clipping: An optimizer wrapper that clips; the gradients are looked at before that.
            Otherwise the optimizer itself tells of its steps.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        factor: float,
        momentum: float,
        warmup: int,
        skips: bool,
        before_clipping: Any = None,
    ) -> None:
        self.optimizer = optimizer
        self.step = 0
        self._factor, self._momentum, self._warmup = factor, momentum, warmup
        self._skips = skips
        self._seen = 0
        self._means: Tensor | None = None
        self._steps: list[int] = []
        # For each step since the last reading, shape (3, groups): is it one, its norm, the mean.
        self._notes: list[Tensor] = []
        # What a scaler calls an overflow, and leaves out after this look.
        self._may_overflow = getattr(before_clipping, "loss_scaler", None) is not None
        if before_clipping is not None:
            self._handle = before_clipping.register_gradient_hook(self._look)
        else:
            self._handle = optimizer.register_step_pre_hook(self._look)

    def remove(self) -> None:
        """Watch no longer."""
        self._handle.remove()

    def read(self) -> list[Spike]:
        """Return the spikes since the last call, with one transfer from the device."""
        if not self._notes:
            return []
        notes = torch.stack(self._notes).tolist()
        spikes = [
            Spike(step, group, norms[group], means[group])
            for step, (flags, norms, means) in zip(self._steps, notes, strict=True)
            for group, flag in enumerate(flags)
            if flag
        ]
        self._steps, self._notes = [], []
        return spikes

    def state_dict(self) -> dict[str, Any]:
        """Return the running means and how many steps they are of."""
        return {"means": self._means, "seen": self._seen}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from ``state_dict``."""
        self._means, self._seen = state_dict["means"], state_dict["seen"]

    @torch.no_grad()
    def _look(self, optimizer: Optimizer, *_: Any) -> None:
        gradients = group_gradients(optimizer)
        norms = group_norms(optimizer, gradients)
        if self._means is None or len(self._means) != len(norms):
            self._means, self._seen = norms, 0
        means = self._means.to(norms.device)
        self._seen += 1
        if self._seen > self._warmup:
            # Also true of NaN, which is no number less than the limit.
            flags = ~(norms <= means * self._factor) & (means > 0)
        else:
            flags = ~torch.isfinite(norms)
        overflow: Any = getattr(optimizer, "found_inf", None)
        if overflow is not None:  # a fused optimizer leaves such a step out by itself
            flags &= overflow == 0
        if self._may_overflow:
            flags &= torch.isfinite(norms).all()
        # The mean of those so far, until there are enough for a running mean.
        weight = max(self._momentum, 1 / self._seen)
        first = ~torch.isfinite(means)
        is_usual = ~flags & torch.isfinite(norms)
        moved = torch.where(is_usual, means + weight * (norms - means), means)
        self._means = torch.where(first, norms, moved)
        self._steps.append(self.step)
        self._notes.append(torch.stack([flags.float(), norms, means]))
        if self._skips:
            is_spike = flags.any()
            for group in gradients:
                for gradient in group:
                    gradient.masked_fill_(is_spike, 0.0)
