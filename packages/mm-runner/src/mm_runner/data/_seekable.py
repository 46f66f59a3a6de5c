"""Batch sampler that starts at any position and seeds workers by batch."""

from __future__ import annotations

from collections import deque
from itertools import count, islice
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils.data import BatchSampler, Sampler, SequentialSampler, get_worker_info
from typing_extensions import override

from ._sampler import DefaultSampler, InfiniteSampler
from ._workers import batch_seed, seed_process

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["DataSettings", "SeekableBatchSampler"]


class DataSettings(NamedTuple):
    """What a loader needs to know of the run.

    ``seed`` is that of samplers and workers. ``generator``, which the run seeds anew each epoch, is
    that of the loader. ``device`` is where batches go.
    """

    seed: int
    generator: torch.Generator
    rank: int = 0
    world_size: int = 1
    device: torch.device | None = None


class SeekableBatchSampler(Sampler[Any]):
    """The batches of another batch sampler, from any of them on, each with a seed of its own.

    Attributes that it lacks are those of the other one.

    Args:
        batch_sampler: Gives lists of indices. Seeking takes constant time if it is torch's own over
            a sampler of this package; else indices are drawn and dropped.
        settings: Of the run.
        has_workers: Whether worker processes load the batches.

    Attributes:
        inner: The other batch sampler.
        num_samples_per_batch: Over all ranks; ``None`` if batches may differ.
    """

    def __init__(self, batch_sampler: Any, settings: DataSettings, *, has_workers: bool) -> None:
        # Sampler's own constructor differs between versions of torch, and does nothing for us.
        self.inner = batch_sampler
        self.num_samples_per_batch: int | None = None
        if type(batch_sampler) is BatchSampler:
            self.num_samples_per_batch = batch_sampler.batch_size * settings.world_size
        self._settings = settings
        self._sampler: Any = getattr(batch_sampler, "sampler", None)
        self._has_workers = has_workers
        self.seek(0)

    def seek(self, epoch: int, batch: int = 0, samples: int | None = None) -> None:
        """Let the iterations from now on begin at a batch of an epoch, which seeds depend on.

        ``samples`` is what all ranks have drawn in it, perhaps in batches of another size, if that
        is known.
        """
        self._start = (epoch, batch, samples)

    def num_from(self, batch: int, samples: int | None) -> int:
        """Return how many batches there are from there on; arguments are those of ``seek``."""
        num_before, samples = self._before(batch, samples)
        if samples is None or not isinstance(self._sampler, DefaultSampler):
            return max(len(self) - num_before, 0)
        extra = 0 if self.inner.drop_last else self.inner.batch_size - 1
        return int((len(self._sampler.positions(samples)) + extra) // self.inner.batch_size)

    def indices_of(self, epoch: int, batch: int, samples: int | None) -> list[int]:
        """Return the indices of one batch; none if the sampler would draw others now."""
        is_pure = type(self._sampler) in (DefaultSampler, InfiniteSampler, SequentialSampler)
        if self.num_samples_per_batch is None or not is_pure:
            return []
        before = self._start
        self.seek(epoch, batch, samples)
        indices: Any = next(iter(self), [])
        self._start = before
        return [int(index) for index in indices]

    def __iter__(self) -> Iterator[Any]:
        epoch, batch, samples = self._start
        num_before, samples = self._before(batch, samples)
        if samples is not None and isinstance(self._sampler, (DefaultSampler, InfiniteSampler)):
            self._sampler.start, num_before = samples, 0
        batches: Iterator[Any] = iter(self.inner)
        if not self._has_workers:
            # Now, not with the first batch: random numbers that the sampler draws for what is left
            # out were drawn before those of the checkpoint.
            deque(islice(batches, num_before), maxlen=0)
            return batches  # this process has random numbers of its own, which are saved
        # Not now: a loader with workers asks twice for each pass, and draws from the second only.
        seed, rank = self._settings.seed, self._settings.rank
        return (
            _SeededBatch(indices, batch_seed(seed, rank, epoch, number))
            for number, indices in zip(count(batch), islice(batches, num_before, None))
        )

    def __len__(self) -> int:
        return len(self.inner)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "inner":  # asked for before there is one, by a copy
            raise AttributeError(name)
        return getattr(self.inner, name)

    def _before(self, batch: int, samples: int | None) -> tuple[int, int | None]:
        """Return how many batches of this size, and samples of all ranks, come before."""
        size = self.num_samples_per_batch
        if size is None:
            return batch, None
        return (batch, batch * size) if samples is None else (samples // size, samples)


class _SeededBatch(list[int]):
    """Indices of a batch that seed the worker which takes them out of its queue.

    A worker unpickles its next batch right before it reads the samples, so this works for every
    dataset, also one that reads whole batches. It arrives as a plain list.
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
    return indices
