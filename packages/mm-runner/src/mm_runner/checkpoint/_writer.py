"""Writes checkpoints while training goes on."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ._host_buffers import HostBuffers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["BackgroundWriter"]

_NICENESS = 10


class BackgroundWriter:
    """Copies a checkpoint, and lets a thread write the copy. One is written at a time.

    The thread is none that the interpreter leaves behind: a program that ends, by an error too,
    ends after the file is whole.

    Example:
        >>> writer = BackgroundWriter()
        >>> writer.submit({"step": 3}, print)
        {'step': 3}
        >>> writer.wait()

    Attributes:
        is_abandoned: Set while what trains ends by an error, and waits for the thread: other
            processes may be gone.
    """

    def __init__(self) -> None:
        self.is_abandoned = threading.Event()
        self._buffers = HostBuffers()
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._thread is not None and self._thread.is_alive()

    def submit(self, checkpoint: Mapping[str, Any], write: Callable[[Any], object]) -> None:
        """Copy ``checkpoint``, and return while a thread calls ``write`` with the copy.

        The one before is waited for: memory is kept for a single copy.

        Raises:
            CheckpointError: If ``checkpoint`` holds something that may not be saved.
            Exception: What writing the one before raised; then nothing is submitted.
        """
        self.wait()
        copied = self._buffers.copy(checkpoint)
        self._thread = threading.Thread(
            target=self._run, args=(write, copied), name="mm_runner-checkpoint"
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait until nothing is being written.

        Raises:
            Exception: What writing it raised, once.
        """
        self.join()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def join(self) -> None:
        """Wait likewise, and leave a failure to the next :meth:`wait`."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def abandon(self) -> None:
        """Wait likewise, but not for other processes."""
        self.is_abandoned.set()
        self.join()
        self.is_abandoned.clear()

    def _run(self, write: Callable[[Any], object], copied: Any) -> None:
        _let_others_go_first()
        try:
            self._buffers.wait()
            write(copied)
        except Exception as error:  # noqa: BLE001 - handed to whoever waits
            self._failure = error


def _let_others_go_first() -> None:
    """Give this thread a processor when training needs none, where threads have priorities."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
