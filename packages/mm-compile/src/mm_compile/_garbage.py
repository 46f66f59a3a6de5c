"""Fewer passes of Python's garbage collector while torch's compiler works."""

import gc
from collections.abc import Iterator
from contextlib import ContextDecorator, contextmanager
from threading import Lock

# Allocations between two passes over the young objects. Capturing and generating code makes
# hundreds of thousands of objects that stay, which each pass of the older generations walks through
# again: at the default of 700 (2,000 in newer Pythons) that is a fifth of a warm start. What piles
# up meanwhile is some ten MiB.
_THRESHOLD = 300_000
# Python 3.12 has some hundred objects set aside when it starts.
_FROZEN_BY_PYTHON = 1_000


class _RareCollections(ContextDecorator):
    """Within it the collector runs rarely, so that garbage in cycles still cannot pile up.

    It may be entered again, also by other threads: the last one to leave puts the threshold back.
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
                if 0 < self._before[0] < _THRESHOLD:  # 0: somebody has turned it off
                    gc.set_threshold(_THRESHOLD, *self._before[1:])

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth == 0 and gc.get_threshold()[0] == _THRESHOLD:  # else somebody set it
                gc.set_threshold(*self._before)


rare_collections = _RareCollections()


@contextmanager
def imports_taken_for_old() -> Iterator[None]:
    """Move what is imported within it where the collector hardly looks.

    Importing torch's compiler makes some 300,000 objects, nearly all of which stay. dynamo runs the
    collector over the young ones after it has compiled a graph, whose share of them is small.
    """
    yield
    # Else what somebody has set aside for good would come back.
    if hasattr(gc, "freeze") and gc.get_freeze_count() < _FROZEN_BY_PYTHON:
        gc.freeze()
        gc.unfreeze()  # to the oldest generation, and none of it was looked at
