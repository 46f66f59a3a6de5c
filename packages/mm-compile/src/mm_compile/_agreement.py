"""All ranks run a region the same way, soon after one of them had to give it up.

A collective could not do this: compiling fails on one rank in the middle of a step, while the
others neither know nor wait, and they would wait for ever where only one rank calls a region. The
store of the process group is a notice board instead. A rank that gives a region up writes so at
once; the others read it when they next begin the model. Ranks that average gradients cannot be a
whole step apart, so they agree from the next step on; results are right meanwhile, since compiled
and eager code compute the same.
"""

import json
import logging
from collections.abc import Callable, Iterable
from typing import Any

import torch.distributed as dist

from ._board_names import board_name
from ._failure import Failure

_logger = logging.getLogger(__name__)

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
        self._prefix = board_name("failures", labels)
        self._num_calls = 0
        self._num_read = 0

    def announce(self, index: int, failure: Failure) -> None:
        """Tell the other ranks that this one runs region ``index`` eagerly."""
        store = find_store()
        if store is None:
            return
        ticket = store.add(f"{self._prefix}/tickets", 1)
        notice = {"rank": dist.get_rank(), "index": index, "reason": str(failure)}
        store.set(f"{self._prefix}/{ticket}", json.dumps(notice))

    def read(self) -> None:
        """Apply what other ranks have announced; called once a step."""
        self._num_calls += 1
        if self._num_calls > _READ_ALWAYS and self._num_calls % _READ_EVERY:
            return
        store = find_store()
        if store is None:
            return
        num_notices = store.add(f"{self._prefix}/tickets", 0)
        while self._num_read < num_notices:
            self._num_read += 1
            # Waits for a writer that has its ticket and is about to write.
            notice = json.loads(store.get(f"{self._prefix}/{self._num_read}"))
            if notice["rank"] != dist.get_rank():
                failure = Failure(f"so does rank {notice['rank']}: {notice['reason']}")
                self._apply(notice["index"], failure)


def find_store() -> Any:
    """Return the store of the process group; None without a group of several ranks."""
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return None
    return dist.distributed_c10d._get_default_store()  # noqa: SLF001 - torch has no public way
