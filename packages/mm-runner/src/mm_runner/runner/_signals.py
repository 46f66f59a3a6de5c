"""The signals that end a run early, for as long as it trains."""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable
    from types import FrameType

__all__ = ["StopSignals"]

# Of these, the first stands for Ctrl-C; a scheduler sends the others. Windows lacks SIGUSR1.
_NAMES = ("SIGINT", "SIGTERM", "SIGUSR1")
# Schedulers and launchers repeat themselves; a process that leaves must not die of it.
_LEAVING_S = 30.0
_ON_CTRL_C = {
    True: b"\nCtrl-C: saving after this step, and leaving. Once more: leaving at once, without "
    b"saving.\n",
    False: b"\nCtrl-C: leaving after this step; nothing is kept. Once more: leaving at once.\n",
}


class StopSignals:
    """Handles SIGINT, SIGTERM and SIGUSR1, on the main thread; elsewhere it does nothing.

    A handler that was there before is called too, but an exit that it asks for waits for the
    checkpoint. A signal that was ignored stays ignored. The second SIGINT is left to the system,
    which ends the process wherever it is.

    Args:
        on_stop: Called with the signal's number, between two instructions of the main thread.
        logger: Told which signals cannot be handled.
        saves: Whether a checkpoint is saved then, for what is said at Ctrl-C. Defaults to ``True``.
    """

    def __init__(
        self, on_stop: Callable[[int], None], logger: logging.Logger, *, saves: bool = True
    ) -> None:
        self._on_stop, self._saves = on_stop, saves
        self._previous: dict[int, Any] = {}
        self._pid = os.getpid()
        self._left_at: float | None = None
        self._received: int | None = None
        if threading.current_thread() is not threading.main_thread():
            return
        for name in _NAMES:
            number = getattr(signal, name, None)
            previous = signal.getsignal(number) if number is not None else signal.SIG_IGN
            if previous is None:  # set by another language's code, which cannot be put back
                logger.warning(f"{name} is handled by other code: it saves no checkpoint.")
            elif previous is not signal.SIG_IGN:
                assert number is not None, "an absent signal counts as ignored"
                self._previous[number] = previous
                signal.signal(number, self._handle)

    def restore(self) -> None:
        """Put back the handlers that were there before."""
        for number, previous in self._previous.items():
            # Handlers that somebody else has set meanwhile stay.
            if signal.getsignal(number) in (self._handle, signal.SIG_DFL):
                signal.signal(number, previous)

    def repeat(self) -> None:
        """Send a signal that came after the last step again, to the restored handler."""
        if self._received is not None:
            os.kill(self._pid, self._received)

    def leave(self) -> None:
        """Put back that of SIGINT, and disregard the others while the process ends."""
        self._left_at = time.monotonic()
        # While the interpreter ends, Python's handlers are gone, and a signal would end the process
        # with a status of its own: srun --kill-on-bad-exit sends one as soon as a rank has left.
        atexit.register(self._ignore)
        if signal.SIGINT in self._previous:
            signal.signal(signal.SIGINT, self._previous.pop(signal.SIGINT))

    def _ignore(self) -> None:
        for number in self._previous:
            if signal.getsignal(number) == self._handle:
                signal.signal(number, signal.SIG_IGN)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            _handle_in_child(number)
            return
        if self._left_at is not None:
            self._handle_after_leaving(number, frame)
            return
        self._received = number
        if number == signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)
            os.write(2, _ON_CTRL_C[self._saves])
        self._on_stop(number)
        _call_previous(self._previous[number], number, frame)

    def _handle_after_leaving(self, number: int, frame: FrameType | None) -> None:
        if signal.getsignal(number) != self._handle:
            # A later run of this process handles it, and calls the handler that it found: this one.
            _call_previous(self._previous.get(number), number, frame)
        elif self._left_at is not None and time.monotonic() > self._left_at + _LEAVING_S:
            # The process did not end after all.
            self.restore()
            os.kill(self._pid, number)


def _handle_in_child(number: int) -> None:
    """Act in a process that was forked while a run trains: it has no checkpoint to save."""
    if number == signal.SIGTERM:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _call_previous(previous: Any, number: int, frame: FrameType | None) -> None:
    if not callable(previous) or previous is signal.default_int_handler:
        return
    with suppress(SystemExit, KeyboardInterrupt):  # this run leaves by itself, with a checkpoint
        previous(number, frame)
