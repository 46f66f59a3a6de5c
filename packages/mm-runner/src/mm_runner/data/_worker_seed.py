"""Random numbers in worker processes: seeded by batch, not by worker."""

from __future__ import annotations

import random
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import get_worker_info
from typing_extensions import override

from ._failing_sample import name_samples_in_worker
from ._permutation import mix
from ._worker_signals import ignore_stop_signals

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SeededBatch", "batch_seed", "seed_process", "start_worker"]


class SeededBatch(list[int]):
    """Indices of one batch that seed the worker process which takes them out of its queue.

    A worker unpickles its next batch right before it reads the samples, so this is the one place
    that works for every dataset, also one that reads whole batches. It arrives as a plain list.

    Args:
        indices: Of the samples.
        seed: For all generators of the worker.
    """

    def __init__(self, indices: Any, seed: int) -> None:
        super().__init__(indices)
        self.seed = seed

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return _arrive, (list(self), self.seed)


def _arrive(indices: list[int], seed: int) -> list[int]:
    if get_worker_info() is not None:
        seed_process(seed)
        name_samples_in_worker()
    return indices


def batch_seed(seed: int, rank: int, epoch: int, batch: int) -> int:
    """Return what the random numbers in a batch come from: 64 bits, as good as never twice alike.

    Args:
        seed: Of the run.
        rank: Of the process whose batch it is.
        epoch: Number of the pass over the data, counted from 0.
        batch: Number of the batch in it, counted from 0.
    """
    state = 0
    for part in (seed, rank, epoch, batch):
        state = mix(state ^ mix(part))
    return state


def seed_process(seed: int) -> None:
    """Seed Python's, torch's and (if installed) NumPy's generator.

    Not the devices': a worker has none, and asking for theirs costs more than all of this.
    """
    random.seed(seed)
    torch.default_generator.manual_seed(seed % 2**63)
    try:
        import numpy as np  # noqa: PLC0415 - optional
    except ImportError:
        return
    np.random.seed(seed % 2**32)  # noqa: NPY002 - the generator that augmentations use


def start_worker(
    worker_id: int,
    seed: int,
    rank: int,
    *,
    is_quiet: bool = False,
    then: Callable[[int], object] | None = None,
) -> None:
    """Prepare a worker as it starts: no two of any two ranks draw the same numbers.

    For what it draws before the first batch, and for iterable datasets, whose batches have no
    indices. torch has seeded it already, but alike on every rank whose generator is seeded alike.

    Args:
        worker_id: Number of the worker in its process.
        seed: Of the run.
        rank: Of the process that the worker belongs to.
        is_quiet: Let no worker but the first warn.
        then: The user's own ``worker_init_fn``.
    """
    ignore_stop_signals()
    if is_quiet and worker_id > 0:
        warnings.simplefilter("ignore")
    seed_process(batch_seed(torch.initial_seed() + seed, rank, -1, worker_id))
    if then is not None:
        then(worker_id)
