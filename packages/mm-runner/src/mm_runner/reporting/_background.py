"""Writing scalars beside the training, which it must neither slow down nor end."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ._writers import LogWriter

__all__ = ["BackgroundScalars"]

# Records are some hundred bytes: these are hours of a run whose network is gone.
_MOST_WAITING = 10_000
# Images are a thousand times as large.
_MOST_IMAGES = 50
_MOST_FAILURES = 10


class BackgroundScalars:
    """Hands records to a writer in a thread of its own.

    A failure is told once; after ten in a row the writer is dropped, with a line. Records that it
    cannot keep up with are dropped likewise.

    Args:
        writer: Called from that thread only.
        name: Of the writer, for messages.
        warn: Called with what the user ought to know, from either thread.
    """

    def __init__(self, writer: LogWriter, name: str, warn: Callable[[str], None]) -> None:
        self._writer, self._name, self._warn = writer, name, warn
        self._waiting: queue.Queue[Any] = queue.Queue(_MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._failures_in_a_row = 0
        self._is_told = self._is_full = self._is_dropped = False
        self._num_others = 0  # of what waits; wrong by a few at worst

    def write(self, record: Mapping[str, Any]) -> None:
        """Let ``record`` be written soon; returns at once."""
        self._put(_Call("write", (dict(record),)))

    def give(self, method: str, *arguments: Any) -> None:
        """Let another method of the writer be called soon, if it has that; returns at once."""
        if self.can(method) and self._num_others < _MOST_IMAGES:
            self._num_others += 1
            self._put(_Call(method, arguments))
        elif self.can(method):
            self._tell_full()

    def can(self, method: str) -> bool:
        """Tell whether the writer has ``method``."""
        return callable(getattr(self._writer, method, None))

    def _put(self, call: _Call) -> None:
        if self._is_dropped:
            return
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._work, name=f"mm-runner {self._name}", daemon=True
            )
            self._thread.start()
        try:
            self._waiting.put_nowait(call)
        except queue.Full:
            self._tell_full()

    def _tell_full(self) -> None:
        if not self._is_full:
            self._warn(f"{self._name} does not keep up with the run: records are dropped.")
        self._is_full = True

    def flush(self, timeout_s: float) -> bool:
        """Wait until all is written; return whether it is, after at most ``timeout_s`` seconds."""
        return self._ask(threading.Event(), timeout_s)

    def close(self, timeout_s: float) -> None:
        """Write what is left, and close the writer; what takes longer is given up."""
        if self._thread is None:
            self._close_writer()
            return
        ending = _Ending()
        if not self._ask(ending, timeout_s):
            self._warn(f"{self._name} was not done {timeout_s:g} s after the end: it is given up.")

    def _ask(self, event: threading.Event, timeout_s: float) -> bool:
        if self._thread is None or not self._thread.is_alive():
            return True
        try:
            self._waiting.put(event, timeout=timeout_s)
        except queue.Full:
            return False
        return event.wait(timeout_s)

    def _work(self) -> None:
        while True:
            call = self._waiting.get()
            if isinstance(call, _Ending):
                self._close_writer()
                call.set()
                return
            if isinstance(call, threading.Event):
                call.set()
                continue
            self._num_others -= call.method != "write"
            if not self._is_dropped:
                self._call(call)

    def _call(self, call: _Call) -> None:
        try:
            getattr(self._writer, call.method)(*call.arguments)
        except Exception as error:  # noqa: BLE001 - whatever it is, the training goes on
            self._failures_in_a_row += 1
            self._tell(error)
        else:
            self._failures_in_a_row = 0

    def _tell(self, error: Exception) -> None:
        what = f"{self._name} could not write: {type(error).__name__}: {error}"
        if not self._is_told:
            self._warn(f"{what}. Training goes on; so do attempts to write.")
        self._is_told = True
        if self._failures_in_a_row == _MOST_FAILURES:
            self._is_dropped = True
            self._warn(f"{what}, {_MOST_FAILURES} times in a row: it is dropped.")

    def _close_writer(self) -> None:
        close: Any = getattr(self._writer, "close", None)
        try:
            if close is not None:
                close()
        except Exception as error:  # noqa: BLE001 - the training is done
            self._warn(f"{self._name} could not be closed: {type(error).__name__}: {error}")


class _Call(NamedTuple):
    """Asks the thread to call a method of the writer."""

    method: str
    arguments: tuple[Any, ...]


class _Ending(threading.Event):
    """Asks the thread to end."""
