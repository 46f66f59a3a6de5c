"""Batch sampler that starts at any position and seeds workers by batch."""

from __future__ import annotations

from collections import deque
from itertools import count, islice
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    Sampler,
    SequentialSampler,
    get_worker_info,
)
from typing_extensions import override

from ._sampler import DefaultSampler, InfiniteSampler
from ._workers import batch_seed, seed_process

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["DataSettings", "SeekableBatchSampler", "make_seekable"]

# Their order depends on seed, epoch and position alone, so that it can be drawn again.
_PURE = (DefaultSampler, InfiniteSampler, SequentialSampler)


class DataSettings(NamedTuple):
    """What a loader needs to know of the run.

    ``seed`` is that of the samplers and the workers, ``rank`` makes the workers of each process
    draw different numbers. ``generator`` seeds the workers; the run sets it anew each epoch.
    ``device`` is where batches go.
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
            a sampler with ``start_at``; else indices are drawn and dropped.
        settings: Of the run.
        has_workers: Whether worker processes load the batches.

    Attributes:
        inner: The other batch sampler.
        seed: Of the batches.
    """

    def __init__(self, batch_sampler: Any, settings: DataSettings, *, has_workers: bool) -> None:
        # Sampler's own constructor differs between versions of torch, and does nothing for us.
        self.inner = batch_sampler
        self.seed = settings.seed
        self._rank, self._world_size = settings.rank, settings.world_size
        self._sampler: Any = getattr(batch_sampler, "sampler", None)
        self._has_workers = has_workers
        self._start: tuple[int, int, int | None] = (0, 0, None)

    @property
    def num_samples_per_batch(self) -> int | None:
        """Samples in a batch, over all ranks; ``None`` if they may differ."""
        if type(self.inner) is not BatchSampler:
            return None
        return int(self.inner.batch_size) * self._world_size

    def seek(self, epoch: int, batch: int = 0, samples: int | None = None) -> None:
        """Let the iterations from now on begin elsewhere.

        Args:
            epoch: Number of the pass, for the seeds.
            batch: Number of the batch in it.
            samples: Samples that all ranks have drawn in it, if that is known; they need not have
                drawn them in batches of this size.
        """
        self._start = (epoch, batch, samples)

    def num_from(self, batch: int, samples: int | None) -> int:
        """Return how many batches there are from there on; arguments are those of ``seek``."""
        size, sampler = self.num_samples_per_batch, self._sampler
        if size is None or not isinstance(sampler, DefaultSampler):
            return max(len(self) - self._num_before(batch, samples), 0)
        left = sampler.num_from(batch * size if samples is None else samples)
        extra = 0 if self.inner.drop_last else self.inner.batch_size - 1
        return int((left + extra) // self.inner.batch_size)

    def indices_of(self, epoch: int, batch: int, samples: int | None = None) -> list[int] | None:
        """Return the indices of one batch; ``None`` if the sampler would draw others now."""
        is_pure = type(self._sampler) in _PURE
        if type(self.inner) is not BatchSampler or not is_pure:
            return None
        before = self._start
        self.seek(epoch, batch, samples)
        indices: Any = next(iter(self), [])
        self._start = before
        return [int(index) for index in indices]

    def __iter__(self) -> Iterator[Any]:
        # A loader with workers asks twice for each pass, and draws from the second only.
        epoch, batch, samples = self._start
        batches = self._from(batch, samples)
        if not self._has_workers:  # this process has random numbers of its own, which are saved
            return batches
        return (
            _SeededBatch(indices, batch_seed(self.seed, self._rank, epoch, number))
            for number, indices in zip(count(batch), batches)
        )

    def __len__(self) -> int:
        return len(self.inner)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "inner":  # asked for before there is one, by a copy
            raise AttributeError(name)
        return getattr(self.inner, name)

    def _num_before(self, batch: int, samples: int | None) -> int:
        """Return how many batches of this size come before."""
        size = self.num_samples_per_batch
        return batch if size is None or samples is None else samples // size

    def _from(self, batch: int, samples: int | None) -> Iterator[Any]:
        size, sampler = self.num_samples_per_batch, self._sampler
        if size is not None and hasattr(sampler, "start_at"):
            sampler.start_at(batch * size if samples is None else samples)
            return iter(self.inner)
        batches: Iterator[Any] = iter(self.inner)
        num_before = self._num_before(batch, samples)
        if self._has_workers:
            return islice(batches, num_before, None)
        # Now, and not with the first batch: random numbers that the sampler draws for what is left
        # out were drawn before those of the checkpoint.
        deque(islice(batches, num_before), maxlen=0)
        return batches


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


def make_seekable(loader: DataLoader[Any], settings: DataSettings) -> DataLoader[Any]:
    """Let ``loader`` begin anywhere, and seed its workers by batch. It is changed and returned.

    One without a batch sampler (an iterable dataset, or ``batch_size=None``) is left as it is.
    """
    if loader.batch_sampler is not None and not isinstance(loader.dataset, IterableDataset):
        seekable = SeekableBatchSampler(
            loader.batch_sampler, settings, has_workers=loader.num_workers > 0
        )
        # Given as an argument, it would leave the loader without its batch_size and drop_last.
        object.__setattr__(loader, "batch_sampler", seekable)
    return loader
