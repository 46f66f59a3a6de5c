"""Skipped steps: count them without waiting for the device, and find those that are not finite."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mm_amp._gradients._norms import local_norms
from mm_amp._gradients._sync import AveragingRanks
from mm_amp._model._parameters import parameters_of

SKIPS_KEY = "skipped_steps"


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
        """Whether the last step is not known yet: the skip that is known was the one before."""
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
    """Finds steps whose loss or gradients are not finite, on all ranks alike.

    Attributes:
        losses: Losses of the micro-batches since the last step.
        loss: Their sum at the last step; ``None`` without any.
        norms: Norms of the gradients at the last step.
    """

    def __init__(self) -> None:
        self.losses: list[Tensor] = []
        self.loss: Tensor | None = None
        self.norms: Tensor | None = None
        self._ranks: AveragingRanks | None = None

    def is_bad(self, optimizer: torch.optim.Optimizer, model: Any) -> bool:
        """Return whether loss or gradients are not finite on any rank; waits for the device.

        Args:
            optimizer: Its step is due, and its gradients are not clipped yet.
            model: The model last used in a forward, or ``None``.
        """
        self.norms = local_norms(parameters_of(optimizer))
        losses, self.losses = self.losses, []
        parts = [one.reshape(()).to(self.norms) for one in losses]
        self.loss = torch.stack(parts).sum() if parts else None
        is_bad = ~self.norms.isfinite().all()
        if self.loss is not None:
            is_bad = is_bad | ~self.loss.isfinite()
        if model is not None:
            if self._ranks is None or self._ranks.model is not model:
                self._ranks = AveragingRanks(model)
            if not self._ranks.is_alone:
                is_bad = self._ranks.all_reduce(is_bad.float()) > 0
        return bool(is_bad)
