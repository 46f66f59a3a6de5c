"""Batches of indices from any of them on."""

from __future__ import annotations

from itertools import count, islice
from typing import TYPE_CHECKING, Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler

from ._worker_seed import SeededBatch, batch_seed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ._settings import DataSettings

__all__ = ["SeekableBatchSampler", "make_seekable"]


class SeekableBatchSampler(Sampler[Any]):
    """The batches of another batch sampler, from any of them on, each with a seed of its own.

    Attributes that it has not are those of the other one.

    Args:
        batch_sampler: Gives lists of indices. Skipping in it takes constant time if it is torch's
            own over a sampler with ``start_at`` or ``skip``, or has ``skip(num_batches)`` itself;
            else indices are drawn and dropped.
        settings: Of the run.
        has_workers: Whether worker processes draw the batches.
    """

    def __init__(self, batch_sampler: Any, settings: DataSettings, *, has_workers: bool) -> None:
        # Sampler's own constructor differs between versions of torch, and does nothing for us.
        self.inner = batch_sampler
        self._settings = settings
        self._has_workers = has_workers
        self._start: tuple[int, int, int | None] = (0, 0, None)

    @property
    def num_samples_per_batch(self) -> int | None:
        """Samples in a batch, over all ranks; ``None`` if they may differ."""
        if type(self.inner) is not BatchSampler:
            return None
        return int(self.inner.batch_size) * self._settings.world_size

    def seek(self, epoch: int, batch: int = 0, position: int | None = None) -> None:
        """Say where iterations begin from now on.

        Args:
            epoch: Number of the pass, for the seeds.
            batch: Number of the batch in it.
            position: Samples that all ranks have drawn in it, if that is known; they need not
                have drawn them in batches of this size.
        """
        self._start = (epoch, batch, position)

    def use_seed(self, seed: int) -> None:
        """Seed what workers draw by another seed than that of the run."""
        self._settings = self._settings._replace(seed=seed)

    def num_from(self, batch: int, position: int | None) -> int:
        """Return how many batches there are from there on; arguments are those of ``seek``."""
        sampler: Any = getattr(self.inner, "sampler", None)
        if type(self.inner) is not BatchSampler or not hasattr(sampler, "num_from"):
            return max(len(self) - self._num_before(batch, position), 0)
        if position is None:
            position = batch * self.inner.batch_size * self._settings.world_size
        size = self.inner.batch_size
        extra = 0 if self.inner.drop_last else size - 1
        return int((sampler.num_from(position) + extra) // size)

    def __iter__(self) -> Iterator[Any]:
        # A loader with workers asks twice for each pass, and draws from the second only.
        epoch, batch, position = self._start
        batches = self._from(batch, position)
        if not self._has_workers:  # this process has random numbers of its own, which are saved
            return batches
        seed, rank = self._settings.seed, self._settings.rank
        return (
            SeededBatch(indices, batch_seed(seed, rank, epoch, number))
            for number, indices in zip(count(batch), batches)
        )

    def __len__(self) -> int:
        return len(self.inner)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "inner":  # asked for before there is one, by a copy
            raise AttributeError(name)
        return getattr(self.inner, name)

    def _num_before(self, batch: int, position: int | None) -> int:
        """Return how many batches of this size come before."""
        size = self.num_samples_per_batch
        return batch if size is None or position is None else position // size

    def _from(self, batch: int, position: int | None) -> Iterator[Any]:
        num_before = self._num_before(batch, position)
        if num_before == 0 and not position:
            return iter(self.inner)
        is_plain = type(self.inner) is BatchSampler
        sampler: Any = getattr(self.inner, "sampler", None)
        if is_plain and hasattr(sampler, "start_at") and position is not None:
            sampler.start_at(position)
        elif is_plain and hasattr(sampler, "skip"):
            sampler.skip(num_before * self.inner.batch_size)
        elif hasattr(self.inner, "skip"):
            self.inner.skip(num_before)
        else:
            batches = self._whole()
            if self._has_workers:  # the loader draws at once
                return islice(batches, num_before, None)
            # Now, and not with the first batch: random numbers that the sampler draws for what is
            # left out were drawn before those of the checkpoint.
            next(islice(batches, num_before, num_before), None)
            return batches
        return self._whole()

    def _whole(self) -> Iterator[Any]:
        batches: Iterator[Any] = iter(self.inner)
        return batches


def make_seekable(loader: DataLoader[Any], settings: DataSettings) -> DataLoader[Any]:
    """Let ``loader`` begin anywhere, and seed its workers by batch. It is changed and returned.

    One without a batch sampler (an iterable dataset, or ``batch_size=None``) is left as it is.
    """
    if loader.batch_sampler is not None and not isinstance(loader.dataset, IterableDataset):
        seekable = SeekableBatchSampler(
            loader.batch_sampler, settings, has_workers=loader.num_workers > 0
        )
        # Past torch's guard: batch_size, sampler and drop_last stay true.
        object.__setattr__(loader, "batch_sampler", seekable)
    return loader
