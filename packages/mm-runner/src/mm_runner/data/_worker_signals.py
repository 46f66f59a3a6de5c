"""Signals that mean the run, and not a data loader's worker."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from typing import Any

__all__ = ["ignore_stop_signals"]

_POLL_S = 5.0


def ignore_stop_signals(_worker_id: int = 0) -> None:
    """Leave SIGINT, SIGUSR1 and SIGTERM to the main process, which still needs batches to save.

    A terminal sends Ctrl-C to every process in front; a launcher or a scheduler sends SIGTERM or
    SIGUSR1 to all of a job. The loader itself ends a worker by SIGTERM: that one counts, on Linux,
    where the sender is known. There the worker also ends when the main process has died, even
    before this was called.

    The workers of loaders that the Runner builds do this; it may be the ``worker_init_fn`` of
    another loader.
    """
    for name in ("SIGINT", "SIGUSR1"):  # Windows has no SIGUSR1
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    main = multiprocessing.parent_process()
    if sys.platform == "linux" and main is not None:
        # Held back from torch's handler, which ends the worker whoever sent it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_end_with, args=(main,), name="mm_runner-term", daemon=True).start()


def _end_with(main: Any) -> None:
    # Otherwise the main process has died already, or a fork server made this process.
    is_child = os.getppid() == main.pid
    while (os.getppid() == main.pid) if is_child else main.is_alive():
        told = signal.sigtimedwait({signal.SIGTERM}, _POLL_S)
        if told is not None and told.si_pid == main.pid:
            break
    os._exit(0)
