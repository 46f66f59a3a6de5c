"""Samplers that split a dataset over the ranks, seek to any batch, and seed workers by batch."""

from __future__ import annotations

import hashlib
import math
import random
from collections import deque
from itertools import count, islice
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    get_worker_info,
)
from typing_extensions import override

from mm_dist import get_dist_info, sync_random_seed
from mm_runner.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sized

# Indices turned into a list at a time.
_CHUNK = 4096


def batch_seed(seed: int, rank: int, epoch: int, batch: int) -> int:
    """Return the seed of the random numbers in a batch of a process, of 63 bits."""
    digest = hashlib.blake2b(repr((seed, rank, epoch, batch)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def draw_order(size: int, seed: int, epoch: int, number: int = 0) -> list[int]:
    """Return the numbers below ``size`` in the random order of an epoch, or of a part of it."""
    generator = torch.Generator().manual_seed(batch_seed(seed, -1, epoch, number))
    order: list[int] = torch.randperm(size, generator=generator).tolist()
    return order


def seed_process(seed: int) -> None:
    """Seed Python's, torch's and (if installed) NumPy's generator, but not those of devices."""
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    try:
        import numpy as np  # noqa: PLC0415 - optional
    except ImportError:
        return
    np.random.seed(seed % 2**32)  # noqa: NPY002 - the generator that augmentations use


class RankSampler(Sampler[int]):
    """Base of both samplers: dataset, seed and rank.

    ``start`` is where the next iteration, and only that, begins in the order over all ranks.
    """

    def __init__(
        self,
        dataset: Sized,
        shuffle: bool = True,  # noqa: FBT001, FBT002 - MMEngine's signature
        seed: int | None = None,
    ) -> None:
        if len(dataset) == 0:
            raise ConfigError(f"The dataset ({type(dataset).__name__}) is empty.")
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = sync_random_seed() if seed is None else seed
        self.rank, self.world_size = get_dist_info()
        self.start = 0

    def _draw(self, positions: range, epoch: int) -> Iterator[int]:
        """Yield the indices at ``positions`` of the order; those past its end wrap to the front."""
        size = len(self.dataset)
        order = None
        if self.shuffle:
            generator = torch.Generator().manual_seed(batch_seed(self.seed, 0, epoch, 0))
            order = torch.randperm(size, generator=generator)
        for begin in range(0, len(positions), _CHUNK):
            chunk = positions[begin : begin + _CHUNK]
            indices = torch.arange(chunk.start, chunk.stop, chunk.step) % size
            yield from (indices if order is None else order[indices]).tolist()


class DefaultSampler(RankSampler):
    """Splits the dataset over the ranks: rank ``r`` of ``W`` gets positions ``r, r + W, ...``.

    The order depends on ``seed`` and the epoch alone, so it is the same however often a run was
    stopped and resumed. A shuffled one takes eight bytes of memory for each sample.

    Args:
        dataset: Anything with a length.
        shuffle: Draw a new permutation each epoch.
        seed: Seed of the permutations; ``None`` draws one and shares it among the ranks.
        round_up: Repeat samples from the front until every rank has equally many. Metrics never
            see the repeated ones.

    Raises:
        ConfigError: If the dataset is empty.
    """

    def __init__(
        self,
        dataset: Sized,
        shuffle: bool = True,  # noqa: FBT001, FBT002 - MMEngine's signature
        seed: int | None = None,
        round_up: bool = True,  # noqa: FBT001, FBT002 - MMEngine's signature
    ) -> None:
        super().__init__(dataset, shuffle, seed)
        self.round_up = round_up
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        start, self.start = self.start, 0
        return self._draw(self.positions(start), self.epoch)

    def __len__(self) -> int:
        return len(self.positions(0))

    def positions(self, start: int) -> range:
        """Return this rank's positions from ``start``; those past the end wrap to the front."""
        end = len(self.dataset)
        if self.round_up:
            num_rounds = max(math.ceil((end - start) / self.world_size), 0)
            end = start + num_rounds * self.world_size
        return range(start + self.rank, end, self.world_size)

    def set_epoch(self, epoch: int) -> None:
        """Choose the permutation of ``epoch``, counted from 0."""
        self.epoch = epoch


class InfiniteSampler(RankSampler):
    """Iterates over the dataset without end, split over the ranks as by :class:`DefaultSampler`.

    One permutation follows another, so over all ranks each sample comes once before any comes
    again. The order depends on ``seed`` alone. For iteration-based training; a loop over epochs
    would not leave the first. The length is that of the dataset, which progress is counted by.

    Args:
        dataset: Anything with a length.
        shuffle: Draw a permutation, a new one each time the dataset is through.
        seed: Seed of the permutations; ``None`` draws one and shares it among the ranks.

    Raises:
        ConfigError: If the dataset is empty.
    """

    def __iter__(self) -> Iterator[int]:
        size, step = len(self.dataset), self.world_size
        begin, self.start = self.rank + self.start, 0
        for epoch in count(begin // size):
            positions = range(begin, (epoch + 1) * size, step)
            yield from self._draw(positions, epoch)
            begin += len(positions) * step

    def __len__(self) -> int:
        return len(self.dataset)

    def set_epoch(self, epoch: int) -> None:
        """Do nothing: epochs follow one another by themselves."""


class DataSettings(NamedTuple):
    """Settings of the run that its loaders depend on."""

    seed: int  # of samplers and workers
    generator: torch.Generator  # of the loader; the run seeds it each epoch
    rank: int = 0
    world_size: int = 1
    device: torch.device | None = None  # where batches go


class SeekableBatchSampler(Sampler[Any]):
    """Batches of another batch sampler, from any position, that seed the worker which loads them.

    Other attributes are those of ``inner``.

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
        self.sampler: Any = getattr(batch_sampler, "sampler", None)
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
        if samples is None or not isinstance(self.sampler, DefaultSampler):
            return max(len(self) - num_before, 0)
        extra = 0 if self.inner.drop_last else self.inner.batch_size - 1
        return int((len(self.sampler.positions(samples)) + extra) // self.inner.batch_size)

    def indices_of(self, epoch: int, batch: int, samples: int | None) -> list[int]:
        """Return the indices of one batch; none if the sampler would draw others now."""
        is_pure = type(self.sampler) in (DefaultSampler, InfiniteSampler, SequentialSampler)
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
        if samples is not None and isinstance(self.sampler, RankSampler):
            self.sampler.start, num_before = samples, 0
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
        """Return the numbers of batches of this size and of samples of all ranks before it."""
        size = self.num_samples_per_batch
        if size is None:
            return batch, None
        return (batch, batch * size) if samples is None else (samples // size, samples)


class _SeededBatch(list[int]):
    """Indices of a batch that seed the worker which receives them.

    A worker unpickles its next batch right before it reads the samples, so this works for every
    dataset, also one that reads whole batches. It arrives as a plain list.
    """

    def __init__(self, indices: Any, seed: int) -> None:
        super().__init__(indices)
        self.seed = seed

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (list(self), self.seed)


def _unpickle(indices: list[int], seed: int) -> list[int]:
    if get_worker_info() is not None:
        seed_process(seed)
    return indices


def samplers_of(loader: Any) -> list[Any]:
    """Return the sampler, the batch sampler, and the sampler in that; ``None`` for each missing."""
    batches = getattr(loader, "batch_sampler", None)
    return [getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None)]


def is_shuffled(loader: Any) -> bool:
    """Return whether a sampler of ``loader`` shuffles, as far as it says so."""
    found = [one for one in samplers_of(loader) if one is not None]
    return any(getattr(one, "shuffle", isinstance(one, RandomSampler)) is True for one in found)


def is_endless(loader: Any) -> bool:
    """Return whether ``loader`` draws from an :class:`InfiniteSampler`."""
    return any(isinstance(one, InfiniteSampler) for one in samplers_of(loader))


def announce_epoch(loader: Any, epoch: int) -> None:
    """Call ``set_epoch`` of the first sampler of ``loader`` that has it."""
    for sampler in samplers_of(loader):
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
            return
