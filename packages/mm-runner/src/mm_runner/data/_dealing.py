"""Dealing the samples of a ready ``DataLoader`` out to the processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from mm_runner.errors import ConfigError

from ._batch_sampler import make_seekable
from ._sampler import DefaultSampler

if TYPE_CHECKING:
    from ._settings import DataSettings

__all__ = ["deal_out"]


def deal_out(loader: DataLoader[Any], settings: DataSettings, where: str) -> DataLoader[Any]:
    """Return ``loader``, or one like it that gives each process its share of the samples.

    Without this every process would see all samples: training would repeat the same step on each,
    and metrics would count samples as often as there are processes.

    Args:
        loader: Made by the user. One whose sampler has ``set_epoch`` deals by itself.
        settings: Of the run.
        where: Path of the loader in the configuration, for messages.

    Raises:
        ConfigError: If the run has several processes and the loader's sampler is not torch's plain
            sequential or random one, which alone can be replaced.
    """
    if settings.world_size == 1 or _deals_by_itself(loader):
        return loader
    if isinstance(loader.dataset, IterableDataset):
        return loader  # it has no sampler: the dataset itself must give each process its share
    plain = type(loader.sampler) in {RandomSampler, SequentialSampler}
    if not plain or type(loader.batch_sampler) is not BatchSampler:
        raise ConfigError(
            f"{where}: a DataLoader with {type(loader.sampler).__name__} was given to a run of "
            f"{settings.world_size} processes, which would all see the same samples. Give a "
            "sampler with set_epoch(), such as torch's DistributedSampler, or a dict instead."
        )
    sampler = DefaultSampler(
        loader.dataset,  # type: ignore[arg-type]
        shuffle=isinstance(loader.sampler, RandomSampler),
        seed=settings.seed,
    )
    dealing = DataLoader(
        loader.dataset,
        batch_size=loader.batch_size,
        sampler=sampler,
        drop_last=loader.drop_last,
        generator=loader.generator or settings.generator,
        **{name: getattr(loader, name) for name in _KEPT},
    )
    return make_seekable(dealing, settings)


_KEPT = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "persistent_workers",
    "prefetch_factor",
)


def _deals_by_itself(loader: DataLoader[Any]) -> bool:
    return any(hasattr(one, "set_epoch") for one in (loader.sampler, loader.batch_sampler))
