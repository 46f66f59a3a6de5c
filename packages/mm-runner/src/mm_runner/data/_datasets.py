"""Checks of datasets, and datasets made of others: joined, repeated, balanced by category."""

from __future__ import annotations

import copy
import math
import operator
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from torch.utils.data import Dataset, IterableDataset
from typing_extensions import override

from mm_runner.errors import ConfigError
from mm_runner.registry import DATASETS, build_from_cfg, check_integer, short_repr


def check_dataset(dataset: Any, where: str, *, has_length: bool = False) -> None:
    """Check that samples can be drawn from ``dataset``, which is no config.

    It is a list of samples, any object with ``__getitem__`` and ``__len__``, or, unless
    ``has_length``, an ``IterableDataset``. ``where`` is its path in the configuration.

    Raises:
        ConfigError: If it is none, or a list of configs, which would be taken for samples.
    """
    first = dataset[0] if isinstance(dataset, (list, tuple)) and dataset else None
    if isinstance(first, Mapping) and first.get("type", "") in DATASETS:
        raise ConfigError(
            f"{where}: a list of configs is no dataset, got {len(dataset)}, the first of them "
            f"{short_repr(first)}; give one of them, or all as "
            'dict(type="ConcatDataset", datasets=[...]).'
        )
    is_stream = isinstance(dataset, IterableDataset)
    is_indexed = hasattr(dataset, "__getitem__") and not is_stream
    is_one = (is_indexed and hasattr(dataset, "__len__")) if has_length else is_indexed or is_stream
    if isinstance(dataset, (str, bytes, type, Mapping)) or not is_one:
        kind = " with a length and indices, " if has_length else " "
        raise ConfigError(
            f"{where}: a dataset{kind}or a dict with 'type' is needed, got {short_repr(dataset)}. "
            "A dataset is a list of samples, an object with __getitem__(index) and __len__()"
            f"{'' if has_length else ', or an IterableDataset'}."
        )


class _Wrapper(Dataset[Any], ABC):
    """Base of datasets made of others, which are initialized now; samples are not copied."""

    def __init__(self, within: Sequence[Any]) -> None:
        for dataset in within:
            if hasattr(dataset, "full_init"):
                dataset.full_init()
        self._within = within

    def full_init(self) -> None:
        """Do nothing: the datasets within are initialized already."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def _place(self, position: int) -> tuple[Any, int]:
        """Return the dataset that has the sample at ``position``, and the index there."""

    @property
    def metainfo(self) -> Any:
        """A copy of the ``metainfo`` of the (first) dataset within; ``None`` without one."""
        return copy.deepcopy(getattr(self._within[0], "metainfo", None))

    @override
    def __getitem__(self, index: int) -> Any:
        dataset, inner = self._find(index)
        return dataset[inner]

    def get_cat_ids(self, index: int) -> Any:
        """Return the categories in a sample, by the same method of the dataset that has it."""
        dataset, inner = self._find(index)
        return dataset.get_cat_ids(inner)

    def get_data_info(self, index: int) -> Any:
        """Return the annotation of a sample, by the same method of the dataset that has it."""
        dataset, inner = self._find(index)
        return dataset.get_data_info(inner)

    def _find(self, index: int) -> tuple[Any, int]:
        size, position = len(self), operator.index(index)
        if not -size <= position < size:
            raise IndexError(f"{type(self).__name__}: no sample {index}; there are {size}.")
        return self._place(position % size)


class ConcatDataset(_Wrapper):
    """Concatenates datasets.

    Args:
        datasets: Datasets with a length and indices, or their configs.
        lazy_init: Accepted for MMEngine's signature, and not used.
        ignore_keys: Key or keys of ``metainfo`` in which the datasets may differ. Metrics and
            models get the first one's ``metainfo``, so everything else has to be the same.

    Attributes:
        datasets: The datasets within.
        cumulative_sizes: For each, how many samples it and those before it have.

    Raises:
        ConfigError: If there is none, one is no such dataset, or their ``metainfo`` differ.

    Example:
        >>> dataset = ConcatDataset([["a", "b"], ["c"]])
        >>> len(dataset), dataset[2], dataset[-3]
        (3, 'c', 'a')
    """

    def __init__(
        self,
        datasets: Sequence[Any],
        lazy_init: bool = False,  # noqa: ARG002, FBT001, FBT002 - MMEngine's signature
        ignore_keys: str | Sequence[str] | None = None,
    ) -> None:
        if not isinstance(datasets, (list, tuple)) or not datasets:
            raise ConfigError(
                "datasets: a list of datasets or their configs, at least one, is needed, got "
                f"{short_repr(datasets)}."
            )
        self.datasets = [_as_dataset(one, f"datasets[{i}]") for i, one in enumerate(datasets)]
        ignored = {ignore_keys} if isinstance(ignore_keys, str) else set(ignore_keys or ())
        first, *others = [getattr(dataset, "metainfo", None) or {} for dataset in self.datasets]
        for index, metainfo in enumerate(others, 1):
            for key in [key for key in {**first, **metainfo} if key not in ignored]:
                given: list[Any] = [first.get(key), metainfo.get(key)]
                # Arrays are compared as lists.
                one, other = (x.tolist() if hasattr(x, "tolist") else x for x in given)
                if one != other:
                    raise ConfigError(
                        f"datasets[{index}]: {key!r} of the metainfo is {short_repr(other)}, and "
                        f"{short_repr(one)} in datasets[0]. Metrics get the first one's: let them "
                        f"be the same, or give ignore_keys=[{key!r}] if they may differ."
                    )
        super().__init__(self.datasets)
        self.cumulative_sizes = list(accumulate(map(len, self.datasets)))

    @override
    def __len__(self) -> int:
        return self.cumulative_sizes[-1]

    @override
    def _place(self, position: int) -> tuple[Any, int]:
        which = bisect_right(self.cumulative_sizes, position)
        before = self.cumulative_sizes[which - 1] if which else 0
        return self.datasets[which], position - before


class RepeatDataset(_Wrapper):
    """Repeats a dataset several times in one epoch.

    Args:
        dataset: A dataset with a length and indices, or its config.
        times: How often its samples come in an epoch.
        lazy_init: Accepted for MMEngine's signature, and not used.

    Attributes:
        dataset: The dataset within.

    Raises:
        ConfigError: If ``dataset`` is none, or ``times`` is below 1.

    Example:
        >>> dataset = RepeatDataset(["a", "b", "c"], times=2)
        >>> len(dataset), dataset[4]
        (6, 'b')
    """

    def __init__(self, dataset: Any, times: int, lazy_init: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - MMEngine's signature
        check_integer("times", times, least=1)
        self.dataset, self.times = _as_dataset(dataset, "dataset"), times
        super().__init__([self.dataset])

    @override
    def __len__(self) -> int:
        return self.times * len(self.dataset)

    @override
    def _place(self, position: int) -> tuple[Any, int]:
        return self.dataset, position % len(self.dataset)


class ClassBalancedDataset(_Wrapper):
    """Repeats the samples that have a rare category in them.

    A category ``c`` in the share ``f(c)`` of the samples has the repeat factor
    ``r(c) = max(1, sqrt(oversample_thr / f(c)))``; a sample comes ``ceil(max r(c))`` times, over
    the categories in it, and once if it has none: repeat factor sampling, from "LVIS: A Dataset for
    Large Vocabulary Instance Segmentation", https://arxiv.org/abs/1908.03195.

    Args:
        dataset: A dataset with a length, indices and ``get_cat_ids(index)``, which lists the
            categories in a sample (asked once for each); or its config.
        oversample_thr: The share of samples below which a category is rare, above 0 and at most 1.
        lazy_init: Accepted for MMEngine's signature, and not used.

    Attributes:
        dataset: The dataset within.

    Raises:
        ConfigError: If ``dataset`` is none or has no ``get_cat_ids``, or ``oversample_thr`` is no
            such share.

    Example:
        >>> class Labelled(list):
        ...     def get_cat_ids(self, index):
        ...         return [self[index]]
        >>> list(ClassBalancedDataset(Labelled("aaab"), oversample_thr=1.0))
        ['a', 'a', 'a', 'a', 'a', 'a', 'b', 'b']
    """

    def __init__(self, dataset: Any, oversample_thr: float, lazy_init: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - MMEngine's signature
        if not 0 < oversample_thr <= 1:
            raise ConfigError(
                f"oversample_thr: a share of the samples, above 0 and at most 1, is needed, got "
                f"{oversample_thr!r}."
            )
        self.dataset, self.oversample_thr = _as_dataset(dataset, "dataset"), oversample_thr
        if not hasattr(self.dataset, "get_cat_ids"):
            raise ConfigError(
                "dataset: one with get_cat_ids(index) is needed; "
                f"{type(self.dataset).__name__} has no such method. Define it there."
            )
        super().__init__([self.dataset])
        # Tensors of equal numbers are different keys.
        categories = [
            {one.item() if hasattr(one, "item") else one for one in self.dataset.get_cat_ids(i)}
            for i in range(len(self.dataset))
        ]
        num_with = Counter(one for found in categories for one in found)
        threshold = self.oversample_thr * len(categories)
        # Not a list: workers would copy it page by page, as they count references to its numbers.
        self._indices = array("q")
        for index, found in enumerate(categories):
            factors = [math.sqrt(threshold / num_with[one]) for one in found]
            self._indices.extend([index] * math.ceil(max([1.0, *factors])))

    @override
    def __len__(self) -> int:
        return len(self._indices)

    @override
    def _place(self, position: int) -> tuple[Any, int]:
        return self.dataset, self._indices[position]


def _as_dataset(value: Any, where: str) -> Any:
    """Return ``value``, built if it is a config, if it is a dataset with a length and indices."""
    dataset = build_from_cfg(value, DATASETS) if isinstance(value, Mapping) else value
    check_dataset(dataset, where, has_length=True)
    return dataset
