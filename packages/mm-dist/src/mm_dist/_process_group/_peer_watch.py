"""Notice the failure of another rank where its connections do not break: NCCL and its like."""

import os
import sys
import threading

from mm_dist._backends import backend_names
from mm_dist._devices import find_accelerator_of
from mm_dist._process_group._failure_record import FailureBoard, FailureRecord

_INTERVAL_S = 1.0
# Ranks asking the store per second.
_MOST_QUESTIONS = 1000
# Time for the launcher to end this rank, or for the main thread to notice.
_GRACE_S = 5.0


def needs_watch(backend: str) -> bool:
    """Return whether a rank of this backend can wait for one that is gone until the timeout.

    gloo's connections break as soon as a process ends. The devices' own backends talk through
    memory that two processes share, where nothing breaks.
    """
    return any(find_accelerator_of(name) is not None for name in backend_names(backend))


class PeerWatch:
    """A thread that ends this process a little after another rank has failed.

    The main thread may be inside a collective that never ends, and cannot be woken from it.

    Args:
        board: Where failures are recorded.
        own: This rank, as its record would name it.
    """

    def __init__(self, board: FailureBoard, own: FailureRecord) -> None:
        self._board = board
        self._own = own
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="mm_dist-peers", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and wait for it: none may need the interpreter when that ends."""
        self._is_over.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(_GRACE_S)

    def _watch(self) -> None:
        interval_s = max(_INTERVAL_S, self._own.world_size / _MOST_QUESTIONS)
        for first in self._board.follow(lambda: self._is_over.wait(interval_s)):
            if first.rank != self._own.rank and not self._is_over.wait(_GRACE_S):
                self._end(first)
            return

    def _end(self, first: FailureRecord) -> None:
        line = f"mm-dist: {self._own.who()} stopped because {first.describe()}\n"
        sys.stdout.flush()
        sys.stderr.write(line)
        sys.stderr.flush()
        os._exit(1)
