"""Dealing the samples of a ready ``DataLoader`` out to the processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from mm_runner.errors import ConfigError

from ._batch_sampler import make_seekable
from ._sampler import DefaultSampler

if TYPE_CHECKING:
    from ._settings import DataSettings

__all__ = ["check_dealing", "deal_out"]


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
            sequential or random one, which alone can be replaced; or if the loader is of a class
            that draws in its own way.
    """
    if settings.world_size == 1 or _deals_by_itself(loader):
        return loader
    if isinstance(loader.dataset, IterableDataset):
        return loader  # it has no sampler: the dataset itself must give each process its share
    # Not the loader's own: one that was given batches has a sampler that it never asks.
    batches, inner = loader.batch_sampler, getattr(loader.batch_sampler, "sampler", loader.sampler)
    plain = type(inner) in {RandomSampler, SequentialSampler}
    draws_its_own_way = type(loader).__iter__ is not DataLoader.__iter__
    if not plain or draws_its_own_way or type(batches) is not BatchSampler:
        raise ConfigError(
            f"{where}: a {type(loader).__name__} with {type(inner).__name__} was given to a run of "
            f"{settings.world_size} processes, which would all see the same samples. Give a "
            "sampler with set_epoch(), such as torch's DistributedSampler, or a dict instead."
        )
    sampler = DefaultSampler(
        loader.dataset,  # type: ignore[arg-type]
        shuffle=isinstance(inner, RandomSampler),
        seed=settings.seed,
    )
    dealing = DataLoader(
        loader.dataset,
        batch_size=batches.batch_size,
        sampler=sampler,
        drop_last=batches.drop_last,
        generator=loader.generator or settings.generator,
        **{name: getattr(loader, name) for name in _KEPT},
        **{name: value for name, value in _newer(loader) if value is not None},
    )
    return make_seekable(dealing, settings)


def check_dealing(sampler: Any, settings: DataSettings, where: str) -> None:
    """Check a sampler, or a batch sampler, of a dataloader's config.

    One of the user's own may deal in its own way; torch's plain ones are known not to, unless each
    process gave its own generator.

    Raises:
        ConfigError: If every process would see the same samples.
    """
    inner = getattr(sampler, "sampler", sampler)
    is_alike = type(inner) in _SEES_ALL and getattr(inner, "generator", None) is None
    if settings.world_size > 1 and is_alike:
        raise ConfigError(
            f"{where}: {type(inner).__name__} was given to a run of {settings.world_size} "
            "processes, which would all see the same samples. Give dict(type='DefaultSampler') or "
            "a sampler that deals them out, such as torch's DistributedSampler."
        )


_SEES_ALL = {RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler}
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


def _newer(loader: DataLoader[Any]) -> list[tuple[str, Any]]:
    """Return what not every version of torch knows, ``None`` for its default."""
    return [
        ("in_order", None if getattr(loader, "in_order", True) else False),
        ("pin_memory_device", getattr(loader, "pin_memory_device", "") or None),
    ]


def _deals_by_itself(loader: DataLoader[Any]) -> bool:
    return any(hasattr(one, "set_epoch") for one in (loader.sampler, loader.batch_sampler))
