"""Which samples a rank sees, and in which order."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch.utils.data import Sampler

from mm_dist import get_dist_info, sync_random_seed
from mm_runner.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence, Sized

__all__ = ["DefaultSampler"]


class DefaultSampler(Sampler[int]):
    """Deals the dataset out to the ranks like cards: rank ``r`` gets positions ``r, r + W, ...``.

    The order depends on ``seed`` and the epoch alone, so it is the same however often a run was
    stopped and resumed.

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
        if not hasattr(dataset, "__len__"):
            raise ConfigError(
                f"DefaultSampler needs a dataset with a length, {type(dataset).__name__} has none. "
                "An iterable dataset takes no sampler."
            )
        if len(dataset) == 0:
            raise ConfigError(f"The dataset ({type(dataset).__name__}) is empty.")
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = sync_random_seed() if seed is None else seed
        self.round_up = round_up
        self.epoch = 0
        self.rank, self.world_size = get_dist_info()

    def __iter__(self) -> Iterator[int]:
        order, size = self._order(), len(self.dataset)
        return (order[position % size] for position in self._positions())

    def __len__(self) -> int:
        return len(self._positions())

    def set_epoch(self, epoch: int) -> None:
        """Choose the permutation of ``epoch``, counted from 0."""
        self.epoch = epoch

    def _positions(self) -> range:
        """Return this rank's positions in the order; those past the end wrap to its front."""
        size = len(self.dataset)
        if self.round_up:
            size = math.ceil(size / self.world_size) * self.world_size
        return range(self.rank, size, self.world_size)

    def _order(self) -> Sequence[int]:
        size = len(self.dataset)
        if not self.shuffle:
            return range(size)
        generator = torch.Generator()
        generator.manual_seed(self.seed + self.epoch)
        permutation: list[int] = torch.randperm(size, generator=generator).tolist()
        return permutation
