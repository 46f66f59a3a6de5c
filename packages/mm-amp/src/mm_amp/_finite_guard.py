"""Keep gradients that are not finite from the parameters where no loss scaler does."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ._averaging_ranks import AveragingRanks
from ._checks import check_positive_int
from ._gradient_norms import dense_part, local_norms
from ._overflow_locator import OverflowLocator
from ._scaled_step import skips_by_itself, step_fused_unless, unscales_by_itself
from ._sharded_norm import local_part
from ._skipped_step import SkippedStep


def build_guard(max_skips: object, num_forwards: int) -> "FiniteGuard":
    """Build a guard that gives up after ``max_skips`` bad steps in a row.

    Raises:
        ConfigError: If ``max_skips`` is no integer of at least 1.
    """
    allowed = check_positive_int("max_skips", max_skips)
    return FiniteGuard(OverflowLocator(allowed, num_forwards=num_forwards))


class FiniteGuard:
    """Undoes a step whose loss or gradients are not finite, on all ranks alike.

    Only the device knows whether that happened, and it is not asked: the optimizer is called as
    always, and the host learns one step late. A fused optimizer leaves the step out in its kernel;
    of any other, parameters and state are copied before the step, and put back where it is bad.
    """

    def __init__(self, locator: OverflowLocator) -> None:
        self._locator = locator
        self._losses: list[Tensor] = []
        self._now: tuple[Tensor, Tensor | None] | None = None
        self._before: tuple[Tensor, Tensor | None] | None = None
        self._model: Any = None
        self._ranks: AveragingRanks | None = None
        self._has_stepped = False

    def note_loss(self, loss: Tensor) -> None:
        """Take in the loss of one micro-batch; its value is not read."""
        self._losses.append(loss.detach())

    def drop_losses(self) -> None:
        """Forget the losses of the next step: its gradients were zeroed."""
        self._losses.clear()

    def look(self, optimizer: torch.optim.Optimizer, model: Any) -> Tensor:
        """Return whether loss or gradients are not finite, on any rank: 0-d, bool, on the device.

        Args:
            optimizer: Whose step is due; its gradients are not clipped yet.
            model: The model last used in a forward, or ``None``.
        """
        norms = local_norms(p for group in optimizer.param_groups for p in group["params"])
        losses, self._losses = self._losses, []
        loss = torch.stack([one.reshape(()).to(norms) for one in losses]).sum() if losses else None
        self._before, self._now = self._now, (norms, loss)
        is_bad = ~norms.isfinite().all()
        if loss is not None:
            is_bad = is_bad | ~loss.isfinite()
        return self._on_any_rank(is_bad, model)

    def _on_any_rank(self, is_bad: Tensor, model: Any) -> Tensor:
        if model is None:
            return is_bad
        if self._ranks is None or model is not self._model:
            self._model, self._ranks = model, AveragingRanks(model)
        return is_bad if self._ranks.is_alone else self._ranks.add_up(is_bad.float()) > 0

    def step(
        self, optimizer: torch.optim.Optimizer, is_bad: Tensor, kwargs: Mapping[str, Any]
    ) -> None:
        """Step the optimizer unless ``is_bad``; the host waits until the first step is taken."""
        if not self._has_stepped:  # the state that it makes then could not be unmade
            if not bool(is_bad):
                optimizer.step(**kwargs)
                self._has_stepped = True
        elif skips_by_itself(optimizer) and not unscales_by_itself(optimizer):
            step_fused_unless(is_bad, optimizer, kwargs)
        else:
            _step_or_undo(optimizer, is_bad, kwargs)

    def __call__(self, step: SkippedStep) -> None:
        """Pass a skipped step on to the locator, with what was kept of it.

        Raises:
            NonFiniteError: If it was the last of ``max_skips`` in a row; on all ranks together.
        """
        norms, loss = (self._before if step.is_late else self._now) or (None, None)
        self._locator.tell(step, norms, loss)


@torch.no_grad()
def _step_or_undo(
    optimizer: torch.optim.Optimizer, is_bad: Tensor, kwargs: Mapping[str, Any]
) -> None:
    """Step with gradients of zero, and take back what that changed, if ``is_bad``."""
    parameters = [p for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
    devices = {parameter.device for parameter in parameters}
    masks = {one: is_bad.to(one, non_blocking=one.type != "cpu") for one in devices}
    for parameter in parameters:  # what the optimizer keeps elsewhere has to stay finite too
        part = dense_part(parameter.grad)
        part.masked_fill_(masks[part.device], 0)
    # A step counter in host memory cannot follow the device without waiting for it.
    changed = [one for one in _changed_by_step(optimizer, parameters) if one.device in masks]
    before = [one.clone() for one in changed]
    with torch.enable_grad():
        optimizer.step(**kwargs)
    for now, old in zip(changed, before, strict=True):
        now.copy_(torch.where(masks[now.device], old, now))


def _changed_by_step(
    optimizer: torch.optim.Optimizer, parameters: list[Tensor]
) -> Iterator[Tensor]:
    """Yield parameters and their state, of sharded ones the part on this rank; live tensors."""
    for parameter in parameters:
        yield local_part(parameter.detach())
        for value in optimizer.state.get(parameter, {}).values():
            if isinstance(value, Tensor):
                yield local_part(value)
