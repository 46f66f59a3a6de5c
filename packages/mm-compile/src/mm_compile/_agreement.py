"""All ranks run a region the same way, soon after one of them had to give it up.

A collective could not do this: compiling fails on one rank in the middle of a step, while the
others neither know nor wait, and they would wait for ever where only one rank calls a region. The
store of the process group is a notice board instead. A rank that gives a region up writes so at
once; the others read it when they next begin the model. Ranks that average gradients cannot be a
whole step apart, so they agree from the next step on; results are right meanwhile, since compiled
and eager code compute the same.
"""

from collections.abc import Callable, Iterable

from ._failure import Failure
from ._notice_board import NoticeBoard

# Reading costs a message to the store: every step at first, when code is compiled, then seldom.
_READ_ALWAYS = 32
_READ_EVERY = 16


class Agreement:
    """The notices about the regions of one model.

    Does nothing without a process group of several ranks.

    Args:
        apply: Called as ``apply(index, failure)`` for every notice of another rank.
        labels: Those of the model's regions.
    """

    def __init__(self, apply: Callable[[int, Failure], None], labels: Iterable[str]) -> None:
        self._apply = apply
        self._board = NoticeBoard("failures", labels)
        self._num_calls = 0

    def announce(self, index: int, failure: Failure) -> None:
        """Tell the other ranks that this one runs region ``index`` eagerly."""
        self._board.post({"index": index, "reason": str(failure)})

    def read(self) -> None:
        """Apply what other ranks have announced; called once a step."""
        self._num_calls += 1
        if self._num_calls > _READ_ALWAYS and self._num_calls % _READ_EVERY:
            return
        for notice in self._board.unread():
            failure = Failure(f"so does rank {notice['rank']}: {notice['reason']}")
            self._apply(notice["index"], failure)
