"""Samplers that split a dataset over the ranks, in an order given by seed and epoch."""

from __future__ import annotations

import math
from itertools import count
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import Sampler

from mm_dist import get_dist_info, sync_random_seed
from mm_runner.errors import ConfigError

from ._workers import batch_seed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sized

__all__ = ["DefaultSampler", "InfiniteSampler", "announce_epoch", "is_endless", "samplers_of"]

# Indices turned into a list at a time.
_CHUNK = 4096


class _RankSampler(Sampler[int]):
    """Base of both samplers: dataset, seed and rank.

    ``start`` is where the next iteration, and only that, begins in the order over all ranks; the
    rest is dealt out to the present ranks, whatever number of ranks drew the samples before.
    """

    def __init__(self, dataset: Sized, seed: int | None, *, shuffle: bool) -> None:
        if not hasattr(dataset, "__len__"):
            raise ConfigError(
                f"{type(self).__name__} needs a dataset with a length, {type(dataset).__name__} "
                "has none. An iterable dataset takes no sampler."
            )
        if len(dataset) == 0:
            raise ConfigError(f"The dataset ({type(dataset).__name__}) is empty.")
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = sync_random_seed() if seed is None else seed
        self.rank, self.world_size = get_dist_info()
        self.start = 0

    def _draw(self, positions: range, epoch: int) -> Iterator[int]:
        """Yield what stands at ``positions`` of the order; those past its end wrap to the front."""
        size = len(self.dataset)
        order = None
        if self.shuffle:
            generator = torch.Generator().manual_seed(batch_seed(self.seed, 0, epoch, 0))
            order = torch.randperm(size, generator=generator)
        for begin in range(0, len(positions), _CHUNK):
            chunk = positions[begin : begin + _CHUNK]
            indices = torch.arange(chunk.start, chunk.stop, chunk.step) % size
            yield from (indices if order is None else order[indices]).tolist()


class DefaultSampler(_RankSampler):
    """Deals the dataset out to the ranks like cards: rank ``r`` gets positions ``r, r + W, ...``.

    The order depends on ``seed`` and the epoch alone, so it is the same however often a run was
    stopped and resumed. A shuffled one takes eight bytes of memory for each sample.

    Args:
        dataset: Anything with a length.
        shuffle: Draw a new permutation each epoch.
        seed: Seed of the permutations; ``None`` draws one and shares it among the ranks.
        round_up: Repeat samples from the front until every rank has equally many. Metrics never
            see the repeated ones.

    Raises:
        ConfigError: If the dataset has no length or is empty.
    """

    def __init__(
        self,
        dataset: Sized,
        shuffle: bool = True,  # noqa: FBT001, FBT002 - MMEngine's signature
        seed: int | None = None,
        round_up: bool = True,  # noqa: FBT001, FBT002 - MMEngine's signature
    ) -> None:
        super().__init__(dataset, seed, shuffle=shuffle)
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


class InfiniteSampler(_RankSampler):
    """Goes through the dataset without end, dealt out to the ranks like cards.

    One permutation follows another, so over all ranks each sample comes once before any comes
    again. The order depends on ``seed`` alone. For iteration-based training; a loop over epochs
    would not leave the first.

    Args:
        dataset: Anything with a length.
        shuffle: Draw a permutation, a new one each time the dataset is through.
        seed: Seed of the permutations; ``None`` draws one and shares it among the ranks.

    Raises:
        ConfigError: If the dataset has no length or is empty.
    """

    def __init__(
        self,
        dataset: Sized,
        shuffle: bool = True,  # noqa: FBT001, FBT002 - MMEngine's signature
        seed: int | None = None,
    ) -> None:
        super().__init__(dataset, seed, shuffle=shuffle)

    def __iter__(self) -> Iterator[int]:
        size, step = len(self.dataset), self.world_size
        begin, self.start = self.rank + self.start, 0
        for epoch in count(begin // size):
            positions = range(begin, (epoch + 1) * size, step)
            yield from self._draw(positions, epoch)
            begin += len(positions) * step

    def __len__(self) -> int:
        """Return the size of the dataset, which progress is counted by; there is no end."""
        return len(self.dataset)

    def set_epoch(self, epoch: int) -> None:
        """Do nothing: epochs follow one another by themselves."""


def samplers_of(loader: Any) -> list[Any]:
    """Return the sampler, the batch sampler, and the sampler in that; ``None`` for each missing."""
    batches = getattr(loader, "batch_sampler", None)
    return [getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None)]


def is_endless(loader: Any) -> bool:
    """Return whether ``loader`` draws from an :class:`InfiniteSampler`."""
    return any(isinstance(one, InfiniteSampler) for one in samplers_of(loader))


def announce_epoch(loader: Any, epoch: int) -> None:
    """Call ``set_epoch`` of the first sampler of ``loader`` that has it."""
    for sampler in samplers_of(loader):
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
            return
