"""Checks of datasets, and datasets made of others: joined, repeated, balanced by category."""

from __future__ import annotations

import copy
import math
import operator
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from torch.utils.data import Dataset, IterableDataset, Subset
from typing_extensions import override

from mm_runner.errors import ConfigError
from mm_runner.registry import DATASETS, build_from_cfg, short_repr
from mm_runner.registry._build import holds_configs

__all__ = [
    "ClassBalancedDataset",
    "ConcatDataset",
    "FirstSamples",
    "RepeatDataset",
    "check_dataset",
]


def check_dataset(dataset: Any, where: str, *, has_length: bool = False) -> None:
    """Check that samples can be drawn from ``dataset``, which is no config.

    Args:
        dataset: Needs no certain class: a list of samples is one, as is any object with
            ``__getitem__`` and ``__len__`` (which only a sampler of its own can make up for), or an
            ``IterableDataset``.
        where: Path of it in the configuration, for messages.
        has_length: Ask for indices and a length.

    Raises:
        ConfigError: If it is none, or a list of configs, which would be taken for samples.
    """
    if holds_configs(dataset, DATASETS):
        raise ConfigError(
            f"{where}: a list of configs is no dataset, got {len(dataset)}, the first of them "
            f"{short_repr(dataset[0])}; give one of them, or all as "
            'dict(type="ConcatDataset", datasets=[...]).'
        )
    is_other = isinstance(dataset, (str, bytes, type, Mapping))
    is_indexed = hasattr(dataset, "__getitem__") and not isinstance(dataset, IterableDataset)
    is_one = (
        is_indexed and hasattr(dataset, "__len__")
        if has_length
        else (is_indexed or isinstance(dataset, IterableDataset))
    )
    if is_other or not is_one:
        kind = " with a length and indices, " if has_length else " "
        raise ConfigError(
            f"{where}: a dataset{kind}or a dict with 'type' is needed, got {short_repr(dataset)}. "
            "A dataset is a list of samples, an object with __getitem__(index) and __len__()"
            f"{'' if has_length else ', or an IterableDataset'}."
        )


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


class _Wrapper(Dataset[Any], ABC):
    """Base of datasets made of others, which may be any with a length and indices."""

    def __init__(self, datasets: Sequence[Any], *, lazy_init: bool) -> None:
        self._within = datasets
        self._size: int | None = None  # until it is initialised
        if not lazy_init:
            self.full_init()

    @abstractmethod
    def _count(self) -> int:
        """Return the length, of initialised datasets within."""

    @abstractmethod
    def _place(self, position: int) -> tuple[Any, int]:
        """Return the dataset that has the sample at ``position``, and the index there."""

    @property
    def metainfo(self) -> Any:
        """A copy of the ``metainfo`` of the (first) dataset within; ``None`` without one."""
        return copy.deepcopy(getattr(self._within[0], "metainfo", None))

    def full_init(self) -> None:
        """Call ``full_init`` of the datasets within, if that was put off."""
        if self._size is None:
            for dataset in self._within:
                if hasattr(dataset, "full_init"):
                    dataset.full_init()
            self._size = self._count()

    def __len__(self) -> int:
        self.full_init()
        assert self._size is not None
        return self._size

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
            raise IndexError(
                f"{type(self).__name__}: sample {index} was asked for; there are {size}."
            )
        return self._place(position % size)


class ConcatDataset(_Wrapper):
    """Puts datasets one behind the other.

    Args:
        datasets: Datasets with a length and indices, or their configs.
        lazy_init: Call :meth:`full_init` at the first use of the length or a sample.
        ignore_keys: Key or keys of ``metainfo`` in which the datasets may differ. Metrics and
            models get the first one's ``metainfo``, so everything else has to be the same.

    Attributes:
        datasets: The datasets within.

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
        lazy_init: bool = False,  # noqa: FBT001, FBT002 - MMEngine's signature
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
            for key in {**first, **metainfo}:
                if key not in ignored and not _are_equal(first.get(key), metainfo.get(key)):
                    raise ConfigError(
                        f"datasets[{index}]: {key!r} of the metainfo is "
                        f"{short_repr(metainfo.get(key))}, and {short_repr(first.get(key))} in "
                        "datasets[0]. Metrics get the first one's: let them be the same, or give "
                        f"ignore_keys=[{key!r}] if they may differ."
                    )
        super().__init__(self.datasets, lazy_init=lazy_init)

    @property
    def cumulative_sizes(self) -> list[int]:
        """For each dataset, how many samples it and those before it have."""
        self.full_init()
        return list(self._ends)

    @override
    def _count(self) -> int:
        self._ends = list(accumulate(map(len, self.datasets)))
        return self._ends[-1]

    @override
    def _place(self, position: int) -> tuple[Any, int]:
        which = bisect_right(self._ends, position)
        return self.datasets[which], position - (self._ends[which - 1] if which else 0)


class RepeatDataset(_Wrapper):
    """Goes through a dataset several times in one epoch.

    Args:
        dataset: A dataset with a length and indices, or its config.
        times: How often its samples come in an epoch.
        lazy_init: Call :meth:`full_init` at the first use of the length or a sample.

    Attributes:
        dataset: The dataset within.

    Raises:
        ConfigError: If ``dataset`` is none, or ``times`` is no positive integer.

    Example:
        >>> dataset = RepeatDataset(["a", "b", "c"], times=2)
        >>> len(dataset), dataset[4]
        (6, 'b')
    """

    def __init__(self, dataset: Any, times: int, lazy_init: bool = False) -> None:  # noqa: FBT001, FBT002 - MMEngine's signature
        if type(times) is not int or times < 1:
            raise ConfigError(f"times: a positive integer is needed, got {times!r}.")
        self.dataset = _as_dataset(dataset, "dataset")
        self.times = times
        super().__init__([self.dataset], lazy_init=lazy_init)

    @override
    def _count(self) -> int:
        return self.times * len(self.dataset)

    @override
    def _place(self, position: int) -> tuple[Any, int]:
        return self.dataset, position % len(self.dataset)


class ClassBalancedDataset(_Wrapper):
    """Repeats the samples that have a rare category in them.

    A category ``c`` that is in the share ``f(c)`` of the samples has the repeat factor
    ``r(c) = max(1, sqrt(t / f(c)))``, ``t`` being ``oversample_thr``; a sample comes
    ``ceil(max r(c))`` times, over the categories in it, and once if it has none. This is repeat
    factor sampling, from "LVIS: A Dataset for Large Vocabulary Instance Segmentation", Gupta,
    Dollar and Girshick, CVPR 2019, https://arxiv.org/abs/1908.03195.

    Every sample is asked once for its categories, in :meth:`full_init`.

    Args:
        dataset: A dataset with a length, indices and ``get_cat_ids(index)``, which lists the
            categories in a sample; or its config.
        oversample_thr: The share of samples below which a category is rare, above 0 and at most 1.
        lazy_init: Call :meth:`full_init` at the first use of the length or a sample.

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

    def __init__(self, dataset: Any, oversample_thr: float, lazy_init: bool = False) -> None:  # noqa: FBT001, FBT002 - MMEngine's signature
        if type(oversample_thr) not in (int, float) or not 0 < oversample_thr <= 1:
            raise ConfigError(
                f"oversample_thr: a share of the samples, above 0 and at most 1, is needed, got "
                f"{oversample_thr!r}. A category in fewer of them is repeated."
            )
        self.dataset = _as_dataset(dataset, "dataset")
        if not hasattr(self.dataset, "get_cat_ids"):
            raise ConfigError(
                "dataset: one with get_cat_ids(index) is needed; "
                f"{type(self.dataset).__name__} has no such method. Define it there."
            )
        self.oversample_thr = oversample_thr
        super().__init__([self.dataset], lazy_init=lazy_init)

    @override
    def _count(self) -> int:
        categories = [self._categories(index) for index in range(len(self.dataset))]
        num_with = Counter(one for found in categories for one in found)
        threshold = self.oversample_thr * len(categories)
        # Not a list: workers would copy it page by page, as they count references to its numbers.
        self._indices = array("q")
        for index, found in enumerate(categories):
            factors = [math.sqrt(threshold / num_with[one]) for one in found]
            self._indices.extend([index] * math.ceil(max([1.0, *factors])))
        return len(self._indices)

    @override
    def _place(self, position: int) -> tuple[Any, int]:
        return self.dataset, self._indices[position]

    def _categories(self, index: int) -> frozenset[Hashable]:
        found: Any = self.dataset.get_cat_ids(index)
        # Tensors of equal numbers are different keys.
        return frozenset(one.item() if hasattr(one, "item") else one for one in found)


def _as_dataset(value: Any, where: str) -> Any:
    """Return ``value``, built if it is a config, if it is a dataset with a length and indices."""
    dataset = build_from_cfg(value, DATASETS) if isinstance(value, Mapping) else value
    check_dataset(dataset, where, has_length=True)
    return dataset


def _are_equal(one: Any, other: Any) -> bool:
    """Return whether two entries of ``metainfo`` are equal, which may be arrays."""
    if hasattr(one, "shape"):
        return getattr(other, "shape", None) == one.shape and bool((one == other).all())
    return bool(one == other)
