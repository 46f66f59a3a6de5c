"""Skipped steps: count them without waiting for the device, and undo a step that is not finite."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mm_amp._checks import check_count
from mm_amp._gradients._norms import dense_part, local_norms
from mm_amp._gradients._sync import AveragingRanks
from mm_amp._model._parameters import local_part, parameters_of
from mm_amp._scaling._loss_scaling import step_fused_unless, unscales_by_itself
from mm_amp._torch_private import skips_in_kernel

SKIPS_KEY = "skipped_steps"


class SkippedStep(NamedTuple):
    """A skipped step, before its gradients are zeroed, as the overflow locator sees it.

    Attributes:
        optimizer: The optimizer.
        model: The model last given to ``optim_context``, or ``None``.
        loss_scale: The factor that the loss of *this* step was multiplied with.
        num_in_a_row: Number of steps in a row that were skipped, this one included.
        is_late: Whether the step *before* this one was skipped: a fused optimizer decides on the
            device, and the gradients are those of the step after.
    """

    optimizer: torch.optim.Optimizer
    model: Any
    loss_scale: float | Tensor
    num_in_a_row: int
    is_late: bool


class SkipLog:
    """Counts skipped steps without draining the device.

    A bool is known at once. A tensor is known one step late: its copy to the host travels while
    the next step is computed. Every rank reads the same answer at the same step.

    Attributes:
        num_skipped: Steps known to have been skipped.
        num_in_a_row: Number of them since the last step that was not skipped.
        is_quiet: Whether a step that was not skipped would change nothing.
    """

    def __init__(self) -> None:
        self.num_skipped = 0
        self.reset()

    def reset(self) -> None:
        """Forget the steps before, but for their number."""
        self.num_in_a_row = 0
        self.is_quiet = True
        self._news: bool | HostFlag = False
        self._pending: HostFlag | None = None

    @property
    def has_news(self) -> bool:
        """Whether a skipped step became known with the last ``note``."""
        if isinstance(self._news, HostFlag):
            self._news = self._count(skipped=self._news.read())
        return self._news

    @property
    def is_late(self) -> bool:
        """Whether the last step is not known yet."""
        return self._pending is not None

    def state_dict(self) -> dict[str, Any]:
        """Return the skips that a resumed run has to know; waits for a pending flag.

        Returns:
            Under ``skipped_steps`` whether the ``last`` step was skipped, if the caller does not
            know that yet, and the ``num_in_a_row`` before; nothing if neither.
        """
        _ = self.has_news  # first: it counts
        last = self._pending is not None and self._pending.read()
        has_ended = self._pending is not None and not last  # the row before it
        if not last and (has_ended or not self.num_in_a_row):
            return {}
        return {SKIPS_KEY: {"last": last, "num_in_a_row": self.num_in_a_row}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the result of ``state_dict``; without one, reset."""
        self.reset()
        saved = state.get(SKIPS_KEY)
        if not isinstance(saved, Mapping):
            return
        self.num_in_a_row = int(saved.get("num_in_a_row", 0))
        self.is_quiet = not self.num_in_a_row  # the next step may end the row
        if saved.get("last"):
            self._pending = HostFlag(torch.tensor(True))  # noqa: FBT003
            self.is_quiet = False

    def note_accumulated(self) -> None:
        """Record a micro-batch that did not step: no news."""
        if self._news is not False:
            self._news = self.has_news and False

    def note(self, skipped: bool | Tensor) -> None:  # noqa: FBT001 - it is what is recorded
        """Record whether one more step was skipped."""
        self.note_accumulated()
        late, self._pending = self._pending, None
        if isinstance(skipped, Tensor):
            self._pending = HostFlag(skipped)
            self._news = late or False
        else:
            is_late_skip = late is not None and self._count(skipped=late.read())
            self._news = self._count(skipped=skipped) or is_late_skip
        self.is_quiet = self._news is False and self._pending is None

    def _count(self, *, skipped: bool) -> bool:
        self.num_skipped += skipped
        self.num_in_a_row = self.num_in_a_row + 1 if skipped else 0
        return skipped


class HostFlag:
    """Copies a 0-d bool tensor to the host in the background.

    Args:
        flag: 0-d, bool, on any device; not changed afterwards.
    """

    def __init__(self, flag: Tensor) -> None:
        # A device-to-host copy that does not block goes to pinned memory, so the host runs on.
        self._copy = flag.to("cpu", non_blocking=True)
        self._wait: Any = None
        if flag.device.type != "cpu":
            module: Any = getattr(torch, flag.device.type)
            if hasattr(module, "current_stream") and hasattr(module, "Event"):
                event = module.Event()
                event.record(module.current_stream(flag.device))
                self._wait = event.synchronize
            else:  # MPS before its events, and backends without streams
                self._wait = module.synchronize

    def read(self) -> bool:
        """Return the value, waiting at most until the device has reached the copy."""
        if self._wait is not None:
            self._wait()
            self._wait = None
        return bool(self._copy.tolist())  # host memory: nothing more to wait for


class FiniteGuard:
    """Leaves out a step whose loss or gradients are not finite, on all ranks alike.

    Only the device knows whether that happened: the optimizer is called as always, and the host
    learns one step late. A fused optimizer leaves the step out in its kernel; of any other,
    parameters and state are copied before the step, and restored where it is bad.

    Args:
        max_skips: Checked here.

    Attributes:
        max_skips: Number of bad steps in a row that ends the training.
    """

    def __init__(self, max_skips: object) -> None:
        self.max_skips = check_count("max_skips", max_skips, least=1)
        self._losses: list[Tensor] = []
        self._now: tuple[Tensor, Tensor | None] | None = None
        self._before: tuple[Tensor, Tensor | None] | None = None
        self._ranks: AveragingRanks | None = None
        self._has_stepped = False

    def note_loss(self, loss: Tensor) -> None:
        """Record the loss of one micro-batch; its value is not read."""
        self._losses.append(loss.detach())

    def drop_losses(self) -> None:
        """Forget the losses of the next step: its gradients were zeroed."""
        self._losses.clear()

    def is_bad(self, optimizer: torch.optim.Optimizer, model: Any) -> Tensor:
        """Return whether loss or gradients are not finite, on any rank: 0-d, bool, on the device.

        Args:
            optimizer: Its step is due, and its gradients are not clipped yet.
            model: The model last used in a forward, or ``None``.
        """
        norms = local_norms(parameters_of(optimizer))
        losses, self._losses = self._losses, []
        loss = torch.stack([one.reshape(()).to(norms) for one in losses]).sum() if losses else None
        self._before, self._now = self._now, (norms, loss)
        is_bad = ~norms.isfinite().all()
        if loss is not None:
            is_bad = is_bad | ~loss.isfinite()
        if model is None:
            return is_bad
        if self._ranks is None or self._ranks.model is not model:
            self._ranks = AveragingRanks(model)
        return is_bad if self._ranks.is_alone else self._ranks.all_reduce(is_bad.float()) > 0

    def evidence(self, *, is_late: bool) -> tuple[Tensor | None, Tensor | None]:
        """Return norms of the gradients, and the loss, of this step or the previous one."""
        return (self._before if is_late else self._now) or (None, None)

    def step(
        self, optimizer: torch.optim.Optimizer, is_bad: Tensor, kwargs: Mapping[str, Any]
    ) -> None:
        """Step the optimizer unless ``is_bad``; the host waits until the first step is taken."""
        if not self._has_stepped:  # the state that it creates could not be restored
            if not bool(is_bad):
                optimizer.step(**kwargs)
                self._has_stepped = True
        elif skips_in_kernel(optimizer) and not unscales_by_itself(optimizer):
            step_fused_unless(is_bad, optimizer, kwargs)
        else:
            _step_or_undo(optimizer, is_bad, kwargs)


@torch.no_grad()
def _step_or_undo(
    optimizer: torch.optim.Optimizer, is_bad: Tensor, kwargs: Mapping[str, Any]
) -> None:
    """Step with gradients of zero, and restore everything that changed, if ``is_bad``."""
    parameters = [one for one in parameters_of(optimizer) if one.grad is not None]
    devices = {parameter.device for parameter in parameters}
    masks = {one: is_bad.to(one, non_blocking=one.type != "cpu") for one in devices}
    for parameter in parameters:  # optimizer state that is not restored has to stay finite too
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
