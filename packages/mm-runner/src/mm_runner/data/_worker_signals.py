"""Signals that mean the run, and not a data loader's worker."""

from __future__ import annotations

import os
import signal
import sys
import threading

__all__ = ["ignore_stop_signals"]


def ignore_stop_signals(_worker_id: int = 0) -> None:
    """Leave SIGINT, SIGUSR1 and SIGTERM to the main process, which still needs batches to save.

    A terminal sends Ctrl-C to every process in front; a launcher or a scheduler sends SIGTERM or
    SIGUSR1 to all of a job. The loader itself ends a worker by SIGTERM: that one counts, on Linux,
    where the sender is known.

    The workers of loaders that the Runner builds do this; it may be the ``worker_init_fn`` of
    another loader.
    """
    for name in ("SIGINT", "SIGUSR1"):  # Windows has no SIGUSR1
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    if sys.platform == "linux":
        # Held back from torch's handler, which ends the worker whoever sent it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(
            target=_end_with_parent, args=(os.getppid(),), name="mm_runner-term", daemon=True
        ).start()


def _end_with_parent(parent: int) -> None:
    while True:
        sender = signal.sigwaitinfo({signal.SIGTERM}).si_pid
        if sender == parent or os.getppid() != parent:
            os._exit(0)
