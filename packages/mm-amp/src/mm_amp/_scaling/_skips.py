"""Skipped steps: count them without waiting for the device, and find those that are not finite."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mm_amp._gradients._norms import local_norms
from mm_amp._gradients._sync import AveragingRanks


class SkipLog:
    """Counts skipped steps without draining the device.

    A bool is known at once. A tensor is known one step late: its copy to the host travels while
    the next step is computed. Every rank reads the same answer at the same step.

    Attributes:
        num_skipped: Steps known to have been skipped.
        num_in_a_row: Number of them since the last step that was not skipped.
        has_news: Whether a skipped step became known with the last ``note``.
    """

    def __init__(self) -> None:
        self.num_skipped = 0
        self.num_in_a_row = 0
        self.has_news = False
        self._pending: HostFlag | None = None

    @property
    def is_late(self) -> bool:
        """Whether the last step is not known yet: the skip that is known was the one before."""
        return self._pending is not None

    def note(self, skipped: bool | Tensor) -> bool:  # noqa: FBT001 - it is what is recorded
        """Record whether one more step was skipped, and return ``has_news``."""
        late, self._pending = self._pending, None
        self.has_news = late is not None and self._count(skipped=late.read())
        if isinstance(skipped, Tensor):
            self._pending = HostFlag(skipped)
        elif self._count(skipped=skipped):
            self.has_news = True
        return self.has_news

    def _count(self, *, skipped: bool) -> bool:
        self.num_skipped += skipped
        self.num_in_a_row = self.num_in_a_row + 1 if skipped else 0
        return skipped

    def state(self) -> dict[str, Any] | None:
        """Return the skips that a resumed run has to know, or ``None``; waits for a pending flag.

        These are whether the ``last`` step was skipped, if the caller does not know that yet, and
        the ``num_in_a_row`` before it.
        """
        last = self._pending is not None and self._pending.read()
        row = self.num_in_a_row if last or self._pending is None else 0
        return {"last": last, "num_in_a_row": row} if last or row else None

    def load(self, state: object) -> None:
        """Load the result of ``state``; without one, a new row begins."""
        saved = state if isinstance(state, Mapping) else {}
        self.num_in_a_row = int(saved.get("num_in_a_row", 0))
        self.has_news = False
        self._pending = HostFlag(torch.tensor(True)) if saved.get("last") else None  # noqa: FBT003


class HostFlag:
    """Copies a 0-d bool tensor, which is not changed afterwards, to the host in the background."""

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
        """Return whether loss or gradients are not finite on any rank; waits for the device."""
        self.norms = local_norms([p for group in optimizer.param_groups for p in group["params"]])
        losses, self.losses = self.losses, []
        parts = [one.reshape(()).to(self.norms) for one in losses]
        self.loss = torch.stack(parts).sum() if parts else None
        is_bad = ~self.norms.isfinite().all()
        if self.loss is not None:
            is_bad = is_bad | ~self.loss.isfinite()
        if model is not None:
            if self._ranks is None or self._ranks.model is not model:
                self._ranks = AveragingRanks(model)
            if self._ranks.count > 1:
                is_bad = self._ranks.all_reduce(is_bad.float()) > 0
        return bool(is_bad)
