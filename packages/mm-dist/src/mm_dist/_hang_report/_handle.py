"""Switch the report on for the process group of this process, and off again."""

import atexit
import logging
import os
import secrets
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from typing import Any

import torch.distributed as dist

from mm_dist._dist_info import DistInfo
from mm_dist._hang_report._board import leave
from mm_dist._hang_report._failure import read_failure
from mm_dist._hang_report._watcher import Watcher
from mm_dist._process_group._store import StoreAddress
from mm_dist._progress import current_iteration
from mm_dist._torch_private import default_store

# torch's type information does not list all of its names.
_DIST: Any = dist
_logger = logging.getLogger(__name__)
# Every rank creates its groups in the same order, so that it finds the keys of the present one.
_next_group = count()


class HangReport:
    """The hang report of this process; made by ``start_hang_report``.

    Args:
        watcher: Looks at this rank.
        say_goodbye: Tells the others that this rank leaves.
    """

    def __init__(self, watcher: Watcher, say_goodbye: Callable[[], None]) -> None:
        self._watcher = watcher
        self._say_goodbye: Callable[[], None] | None = say_goodbye
        self._process = os.getpid()
        # At the end of the interpreter no thread may be left that needs it.
        atexit.register(self._end_thread)

    def set_timeout(self, timeout: timedelta) -> None:
        """Expect collectives to take no longer than this from now on."""
        self._watcher.set_timeout(timeout)

    def explain(self, error: BaseException) -> str | None:
        """Return who was waited for, in one sentence, if that is what ends this rank.

        Call it on the way out, before the group is destroyed. After a timeout the report is made
        if it was not made in time. Any other error is told to the others, for their reports.
        """
        failure = read_failure(error)
        if failure is None or not self._is_own_process():
            return None
        report = self._watcher.explain(failure)
        return None if report is None else report.summary

    @property
    def is_store_silent(self) -> bool:
        """Whether the ranks' store has not answered since ``explain`` was called."""
        return self._watcher.is_store_silent

    def stop(self) -> None:
        """End the thread, and tell the others that this rank leaves; may be called again."""
        if not self._is_own_process():
            return
        atexit.unregister(self._end_thread)
        self._end_thread()
        say_goodbye, self._say_goodbye = self._say_goodbye, None
        if say_goodbye is None:
            return
        try:
            say_goodbye()
        except RuntimeError:
            _logger.debug("the store is gone already", exc_info=True)

    def _end_thread(self) -> None:
        # In a forked child the thread is missing, and may hold its locks for ever.
        if self._is_own_process():
            self._watcher.stop()

    def _is_own_process(self) -> bool:
        # A forked child has neither the thread nor a part in the group.
        return os.getpid() == self._process


def start_hang_report(info: DistInfo, timeout: timedelta) -> HangReport | None:
    """Begin to watch this rank; every rank of the default group calls it, in the training thread.

    Args:
        info: This process among the others.
        timeout: How long torch lets a collective take.

    Returns:
        The handle, or ``None`` for a single rank, and where the ranks met without torch's store.
    """
    store = _find_store()
    if info.world_size == 1 or not isinstance(store, _DIST.TCPStore):
        _logger.debug("no hang report for %d ranks that met at %s", info.world_size, store)
        return None
    prefix = _agree_on_prefix(info.rank)
    address = StoreAddress(store.host, store.port)
    watcher = Watcher(info.rank, info.world_size, address, prefix, timeout)
    return HangReport(watcher, lambda: leave(store, prefix, info.rank, current_iteration()))


def _find_store() -> Any:
    store: Any = default_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return store


def _agree_on_prefix(rank: int) -> str:
    """Return a prefix of keys that no earlier group has used, although the store may be older."""
    key = f"mm_dist/hang_report/{next(_next_group)}"
    # torch's own prefix of this store tells restarts apart.
    store: Any = default_store()
    if rank == 0:
        store.set(key, secrets.token_hex(4))
    return f"mm_dist/hang_report/{bytes(store.get(key)).decode()}"
