"""What a DataLoader of torch's can draw samples from."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from mm_runner.errors import ConfigError
from mm_runner.registry import DATASETS, short_repr
from mm_runner.registry._build import holds_configs

__all__ = ["LONGEST_WRITTEN", "check_dataset", "refuse_configs", "refuse_left_out"]

# Items of a dataloader's list that a run's config.yaml still holds.
LONGEST_WRITTEN = 1000
_LONG_LIST = re.compile(r"<\w+ of \d+ samples>")
_OBJECT = re.compile(r"<(\w+)(\.[\w<>]+)+>")
# The second is for many samples at a time; where torch finds it, it asks for nothing else.
_WAYS_TO_SAMPLES = ("__getitem__", "__getitems__")


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
    refuse_left_out(dataset, where)
    refuse_configs(dataset, where)
    is_other = isinstance(dataset, (str, bytes, type, Mapping))
    has_samples = any(hasattr(dataset, name) for name in _WAYS_TO_SAMPLES)
    if is_other or not (isinstance(dataset, IterableDataset) or has_samples):
        raise ConfigError(
            f"{where}: a dataset or a dict with 'type' is needed, got {short_repr(dataset)}. A "
            "dataset is a list of samples, an object with __getitem__(index) and __len__(), or an "
            f"IterableDataset.{_hint(dataset)}"
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


def refuse_left_out(value: Any, where: str) -> None:
    """Refuse what stands for a list or an object in a run's ``config.yaml``, also in ``value``.

    Raises:
        ConfigError: Naming where it is.
    """
    if isinstance(value, str) and _is_left_out(value):
        raise ConfigError(
            f"{where}: {value!r} is what a run's config.yaml has in place of a long list, or of an "
            "object. Give that itself, or the config of a dataset that reads the samples."
        )
    if isinstance(value, dict):
        for key, item in value.items():
            refuse_left_out(item, f"{where}.{key}")
    elif isinstance(value, (list, tuple)) and len(value) <= LONGEST_WRITTEN:
        for index, item in enumerate(value):
            refuse_left_out(item, f"{where}[{index}]")


def _is_left_out(text: str) -> bool:
    found = _OBJECT.fullmatch(text)
    # Text may look like that and be meant: the module tells.
    return bool(_LONG_LIST.fullmatch(text)) or (found is not None and found[1] in sys.modules)


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
