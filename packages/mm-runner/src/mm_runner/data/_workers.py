"""Worker processes of data loaders: their seeds and signals."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import random
import signal
import sys
import threading
import warnings
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["batch_seed", "ignore_stop_signals", "seed_process", "start_worker"]

_POLL_S = 5.0


def batch_seed(seed: int, rank: int, epoch: int, batch: int) -> int:
    """Return the seed of the random numbers in a batch of a process, of 63 bits.

    Epochs, and the batches in each, are counted from 0.
    """
    digest = hashlib.blake2b(repr((seed, rank, epoch, batch)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_process(seed: int) -> None:
    """Seed Python's, torch's and (if installed) NumPy's generator, but not those of devices."""
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    try:
        import numpy as np  # noqa: PLC0415 - optional
    except ImportError:
        return
    np.random.seed(seed % 2**32)  # noqa: NPY002 - the generator that augmentations use


def start_worker(
    worker_id: int, seed: int, rank: int, *, is_quiet: bool, then: Callable[[int], object] | None
) -> None:
    """Ignore stop signals, seed the worker by its rank, and call the user's ``worker_init_fn``.

    The seed is for what it draws before the first batch, and for iterable datasets, whose batches
    have no indices. torch has seeded it already, but alike on ranks whose generators are alike.
    With ``is_quiet`` no worker but the first warns.
    """
    ignore_stop_signals()
    if is_quiet and worker_id > 0:
        warnings.simplefilter("ignore")
    seed_process(batch_seed(torch.initial_seed() + seed, rank, -1, worker_id))
    if then is not None:
        then(worker_id)


def ignore_stop_signals(_worker_id: int = 0) -> None:
    """Leave SIGINT, SIGUSR1 and SIGTERM to the main process, which still needs batches to save.

    Terminals, launchers and schedulers send these to every process of a job. On Linux a SIGTERM of
    the loader itself counts, and the worker also ends when the main process has died. Workers of
    loaders that the Runner builds do this; it may be the ``worker_init_fn`` of another loader.
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
    """End this worker when its loader sends SIGTERM, or the main process dies."""
    # Otherwise the main process has died already, or a fork server made this process.
    is_child = os.getppid() == main.pid
    while (os.getppid() == main.pid) if is_child else main.is_alive():
        received = signal.sigtimedwait({signal.SIGTERM}, _POLL_S)
        if received is not None and received.si_pid == main.pid:
            break
    os._exit(0)
