"""What a DataLoader of torch's can draw samples from."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from mm_runner.errors import ConfigError
from mm_runner.registry import short_repr

__all__ = ["check_dataset"]


def check_dataset(dataset: Any, where: str) -> None:
    """Check that samples can be drawn from ``dataset``, which is no config.

    Args:
        dataset: Needs no certain class: a list of samples is one, as is any object with
            ``__getitem__`` and ``__len__`` (which only a sampler of its own can make up for), or an
            ``IterableDataset``.
        where: Path of it in the configuration, for messages.

    Raises:
        ConfigError: If it is none.
    """
    is_other = isinstance(dataset, (str, bytes, type, Mapping))
    if is_other or not (isinstance(dataset, IterableDataset) or hasattr(dataset, "__getitem__")):
        raise ConfigError(
            f"{where}: a dataset or a dict with 'type' is needed, got {short_repr(dataset)}. A "
            "dataset is a list of samples, an object with __getitem__(index) and __len__(), or an "
            f"IterableDataset.{_hint(dataset)}"
        )


def _hint(dataset: Any) -> str:
    if isinstance(dataset, Mapping):
        return (
            f" Of a dict of datasets, take one: {', '.join(map(repr, dataset)) or 'it is empty'}."
        )
    if isinstance(dataset, DataLoader):
        return " A DataLoader goes in place of the whole dict."
    if inspect.isclass(dataset) or inspect.isroutine(dataset):
        return f" What makes one goes into a dict: dict(type={dataset.__name__}, ...)."
    if isinstance(dataset, str):
        return f" The name of one goes into a dict: dict(type={dataset!r}, ...)."
    if hasattr(dataset, "__iter__") and not isinstance(dataset, bytes):
        return (
            " This one can only be gone through: make a list of it, or a class derived from "
            "torch.utils.data.IterableDataset whose __iter__ gives the samples."
        )
    return ""
