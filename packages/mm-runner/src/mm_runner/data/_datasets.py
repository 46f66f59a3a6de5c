"""Checks of datasets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.utils.data import Dataset, IterableDataset, Subset

from mm_runner.errors import ConfigError
from mm_runner.registry import DATASETS, short_repr
from mm_runner.registry._build import holds_configs

__all__ = ["FirstSamples", "check_dataset", "refuse_configs"]

# The second is for many samples at a time; where torch finds it, it asks for nothing else.
_WAYS_TO_SAMPLES = ("__getitem__", "__getitems__")


class FirstSamples(Subset[Any]):
    """The first samples of a dataset; other attributes, such as ``metainfo``, are passed through.

    Args:
        dataset: With a length.
        size: Samples at most.
    """

    def __init__(self, dataset: Dataset[Any], size: int) -> None:
        super().__init__(dataset, range(min(len(dataset), size)))  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        # Asked for by pickle before there is a dataset; and torch looks for ways to read a batch.
        if name.startswith("__") or name == "dataset":
            raise AttributeError(name)
        return getattr(self.dataset, name)


def check_dataset(dataset: Any, where: str) -> None:
    """Check that samples can be drawn from ``dataset``, which is no config.

    Args:
        dataset: Needs no certain class: a list of samples is one, as is any object with
            ``__getitem__`` and ``__len__`` (which only a sampler of its own can make up for), or an
            ``IterableDataset``.
        where: Path of it in the configuration, for messages.

    Raises:
        ConfigError: If it is none, or a list of configs.
    """
    refuse_configs(dataset, where)
    is_other = isinstance(dataset, (str, bytes, type, Mapping))
    has_samples = any(hasattr(dataset, name) for name in _WAYS_TO_SAMPLES)
    if is_other or not (isinstance(dataset, IterableDataset) or has_samples):
        raise ConfigError(
            f"{where}: a dataset or a dict with 'type' is needed, got {short_repr(dataset)}. A "
            "dataset is a list of samples, an object with __getitem__(index) and __len__(), or an "
            "IterableDataset; a DataLoader goes in place of the whole dict."
        )


def refuse_configs(dataset: Any, where: str) -> None:
    """Refuse a list of configs of datasets, which would be trained on as if they were samples.

    Raises:
        ConfigError: If it is one.
    """
    if holds_configs(dataset, DATASETS):
        raise ConfigError(
            f"{where}: a list of configs is no dataset, got {len(dataset)}, the first of them "
            f"{short_repr(dataset[0])}; give one of them, or all as "
            'dict(type="ConcatDataset", datasets=[...]).'
        )
