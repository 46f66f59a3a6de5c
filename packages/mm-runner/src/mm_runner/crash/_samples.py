"""Which samples the batch of the failing step was made of."""

from __future__ import annotations

from typing import Any

from torch.utils.data import BatchSampler, SequentialSampler

from mm_runner.data import DefaultSampler, InfiniteSampler, SeekableBatchSampler, TrainBatches

__all__ = ["samples_of_step"]

# What they deal out depends on seed, epoch and position alone, so that it can be asked again.
_PURE = (DefaultSampler, InfiniteSampler, SequentialSampler)


def samples_of_step(train_loop: Any) -> list[int] | None:
    """Return the indices, in the dataset, of the batch that the training was given last.

    Nothing is kept for this in a step: the sampler is asked once more for that place. ``None``
    where another one would be asked for other samples, or the loop is the user's own.
    """
    batches = getattr(train_loop, "batches", None)
    sampler = getattr(getattr(batches, "loader", None), "batch_sampler", None)
    if not isinstance(batches, TrainBatches) or not isinstance(sampler, SeekableBatchSampler):
        return None
    inner = sampler.inner
    if type(inner) is not BatchSampler or type(inner.sampler) not in _PURE or not batches.batch:
        return None
    place = batches.position(batches.batch - 1)
    sampler.seek(batches.epoch, place.batch, place.samples)
    try:
        return [int(index) for index in next(iter(sampler))]
    finally:
        sampler.seek(batches.epoch)
