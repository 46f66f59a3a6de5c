"""Where rank 0 writes what is compiled from which step on, and the others read it."""

from collections import deque
from collections.abc import Iterable
from dataclasses import asdict
from itertools import count

from mm_compile._notice_board import NoticeBoard

from ._plan import Decision

# Reading costs a message to the store: every step at first, then seldom.
_READ_ALWAYS = 64
_READ_EVERY = 16


class LocalBoard:
    """Keeps a decision until the next step begins."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Decision]] = deque()

    @property
    def is_first_rank(self) -> bool:
        """Whether this process speaks for all."""
        return True

    def is_open(self, _num_steps: int) -> bool:
        """Whether this process may decide now."""
        return True

    def announce(self, decision: Decision, num_steps: int) -> None:
        """Let a decision hold from the next step on."""
        self._waiting.append((num_steps + 1, decision))

    def due(self, num_steps: int) -> list[Decision]:
        """Take the decisions that hold from step ``num_steps`` on, or from an earlier one."""
        decisions = []
        while self._waiting and self._waiting[0][0] <= num_steps:
            decisions.append(self._waiting.popleft()[1])
        return decisions


class SharedBoard(LocalBoard):
    """Lets rank 0 decide for all ranks, by the store of the process group.

    A decision holds from the next step at which boards are read. Ranks that average gradients
    cannot be a whole step apart, so by then each of them finds it. No collective: nobody waits.

    Args:
        labels: Those of the model's regions.
    """

    def __init__(self, labels: Iterable[str]) -> None:
        super().__init__()
        self._board = NoticeBoard("auto", labels)

    @property
    def is_first_rank(self) -> bool:
        """Whether this process speaks for all."""
        return self._board.is_first_rank

    def is_open(self, num_steps: int) -> bool:
        """Whether this process may decide now."""
        return self.is_first_rank and _is_reading_step(num_steps)

    def announce(self, decision: Decision, num_steps: int) -> None:
        """Let a decision hold, on all ranks, from the next reading step on."""
        since = next(step for step in count(num_steps + 1) if _is_reading_step(step))
        self._waiting.append((since, decision))
        self._board.post({"since": since, "decision": asdict(decision)})

    def due(self, num_steps: int) -> list[Decision]:
        """Take the decisions that hold from step ``num_steps`` on, or from an earlier one."""
        if not self.is_first_rank and _is_reading_step(num_steps):
            for notice in self._board.unread():
                fields = notice["decision"]
                fields["compiled"] = tuple(fields["compiled"])
                self._waiting.append((notice["since"], Decision(**fields)))
        return super().due(num_steps)


def _is_reading_step(num_steps: int) -> bool:
    return num_steps <= _READ_ALWAYS or num_steps % _READ_EVERY == 0
