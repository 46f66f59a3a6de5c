"""Which optimizer steps were left out because gradients overflowed, as far as the host knows."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ._host_flag import HostFlag

if TYPE_CHECKING:
    from ._skipped_step import SkippedStep


SKIPS_KEY = "skipped_steps"


class SkipLog:
    """Learns of every step in turn, and answers without draining the device.

    A bool is known at once. A tensor is known one step late: its copy to the host travels while
    the next step is computed. Every rank reads the same answer at the same step.

    Attributes:
        listeners: Called, in order, with each step that turns out to have been skipped.
        num_skipped: Steps known to have been skipped.
        num_in_a_row: How many of them came last, without one in between that was not.
        is_quiet: Whether there is nothing that a step which was not skipped would change.
    """

    def __init__(self) -> None:
        self.listeners: list[Callable[[SkippedStep], None]] = []
        self.num_skipped = 0
        self.num_in_a_row = 0
        self.is_quiet = True
        self._news: bool | HostFlag = False
        self._on_its_way: HostFlag | None = None

    @property
    def has_news(self) -> bool:
        """Whether a skipped step became known with the last ``note``."""
        if isinstance(self._news, HostFlag):
            self._news = self._count(skipped=self._news.read())
        return self._news

    def restart(self) -> None:
        """Forget the steps before, but for their number: the run goes on from another state."""
        self.num_in_a_row = 0
        self.is_quiet = True
        self._news = False
        self._on_its_way = None

    def state_dict(self) -> dict[str, Any]:
        """Return what a run that goes on has yet to learn; waits for a flag that is on its way.

        Returns:
            Under ``skipped_steps`` whether the ``last`` step was skipped, if that is not known to
            the caller yet, and the ``num_in_a_row`` that are; nothing if neither.
        """
        _ = self.has_news  # first: it counts
        last = self._on_its_way is not None and self._on_its_way.read()
        has_ended = self._on_its_way is not None and not last  # what came in a row before it
        if not last and (has_ended or not self.num_in_a_row):
            return {}
        return {SKIPS_KEY: {"last": last, "num_in_a_row": self.num_in_a_row}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state_dict`` returned; without it as after ``restart``."""
        self.restart()
        saved = state.get(SKIPS_KEY)
        if not isinstance(saved, Mapping):
            return
        self.num_in_a_row = int(saved.get("num_in_a_row", 0))
        self.is_quiet = not self.num_in_a_row  # the next step may end the row
        if saved.get("last"):
            self._on_its_way = HostFlag(torch.tensor(True))  # noqa: FBT003
            self.is_quiet = False

    def note_accumulated(self) -> None:
        """Take in a micro-batch that did not step: no news."""
        if self._news is not False:
            self._news = self.has_news and False

    def note(self, skipped: bool | Tensor) -> None:  # noqa: FBT001 - it is what is noted
        """Take in what became of one more step."""
        self.note_accumulated()
        late, self._on_its_way = self._on_its_way, None
        if isinstance(skipped, Tensor):
            self._on_its_way = HostFlag(skipped)
            self._news = late or False
        else:
            is_late_skip = late is not None and self._count(skipped=late.read())
            self._news = self._count(skipped=skipped) or is_late_skip
        self.is_quiet = self._news is False and self._on_its_way is None

    def tell(
        self, optimizer: torch.optim.Optimizer, model: Any, loss_scale: float | Tensor
    ) -> None:
        """Call the listeners if there is a skipped step to tell of; free without listeners."""
        if self.listeners and self.has_news:
            from ._skipped_step import SkippedStep  # noqa: PLC0415 - most runs never need it

            is_late = self._on_its_way is not None
            step = SkippedStep(optimizer, model, loss_scale, self.num_in_a_row, is_late)
            for listener in self.listeners:
                listener(step)

    def _count(self, *, skipped: bool) -> bool:
        self.num_skipped += skipped
        self.num_in_a_row = self.num_in_a_row + 1 if skipped else 0
        return skipped
