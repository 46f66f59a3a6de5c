"""Fewer runs of Python's garbage collector while torch's compiler works.

Capturing and generating code makes hundreds of thousands of objects that stay, which each
collection walks through again: 0.5 s of processor time of a warm start.
"""

import gc
from contextlib import ContextDecorator
from threading import Lock

# Allocations between two collections of young objects; garbage of some ten MiB.
_THRESHOLD = 300_000


class _RareCollections(ContextDecorator):
    """Context in which the collector runs rarely.

    It nests, also across threads: the last one to leave restores the threshold.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._depth = 0
        self._before = (0, 0, 0)

    def __enter__(self) -> None:
        with self._lock:
            self._depth += 1
            if self._depth == 1:
                self._before = gc.get_threshold()
                if 0 < self._before[0] < _THRESHOLD:  # 0: the user has disabled it
                    gc.set_threshold(_THRESHOLD, *self._before[1:])

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth == 0 and gc.get_threshold()[0] == _THRESHOLD:
                gc.set_threshold(*self._before)


rare_collections = _RareCollections()
