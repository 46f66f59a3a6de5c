"""What datasets made of others have in common."""

from __future__ import annotations

import copy
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch.utils.data import Dataset, IterableDataset
from typing_extensions import override

from mm_runner.data._datasets import refuse_configs
from mm_runner.errors import ConfigError
from mm_runner.registry import DATASETS, build_from_cfg, short_repr

__all__ = ["AbstractDatasetWrapper", "Place", "as_dataset", "ask"]


class Place(NamedTuple):
    """Where a sample really is: ``inner`` is its index in ``dataset``."""

    dataset: Any
    inner: int


class AbstractDatasetWrapper(Dataset[Any], ABC):
    """Passes what is asked about a sample on to the dataset that has it.

    Those within may be any with a length and indices; ``full_init``, ``metainfo``, ``get_cat_ids``,
    ``get_data_info`` and ``__getitems__`` are used where they are there.
    """

    def __init__(self, *, lazy_init: bool) -> None:
        self._size = 0
        self._is_initialised = False
        if not lazy_init:
            self.full_init()

    @abstractmethod
    def _within(self) -> Sequence[Any]:
        """Return the datasets that this one is made of."""

    @abstractmethod
    def _count(self) -> int:
        """Find out what the wrapper needs to know of initialised datasets; return its length."""

    @abstractmethod
    def _place(self, position: int) -> Place:
        """Return where the sample at ``position`` is, which is within the length."""

    @property
    def metainfo(self) -> Any:
        """What the (first) dataset within says of itself, a copy; ``None`` if it says nothing."""
        return copy.deepcopy(getattr(self._within()[0], "metainfo", None))

    def full_init(self) -> None:
        """Let the datasets within read what they have put off; what asks for samples does so."""
        if self._is_initialised:
            return
        for dataset in self._within():
            if hasattr(dataset, "full_init"):
                dataset.full_init()
        self._size = self._count()
        self._is_initialised = True

    def __len__(self) -> int:
        self.full_init()
        return self._size

    @override
    def __getitem__(self, index: int) -> Any:
        dataset, inner = self.place(index)
        return dataset[inner]

    def place(self, index: int) -> Place:
        """Return the dataset that has the sample ``index``, and its index there.

        Raises:
            IndexError: If there are not so many; a negative index counts from the end.
        """
        size = len(self)
        position = operator.index(index)
        position += size if position < 0 else 0
        if not 0 <= position < size:
            raise IndexError(
                f"{type(self).__name__}: sample {index} was asked for; there are {size}."
            )
        return self._place(position)

    def get_cat_ids(self, index: int) -> Any:
        """Return the categories in a sample.

        Raises:
            ConfigError: If the dataset that has it does not tell.
        """
        dataset, inner = self.place(index)
        return ask(dataset, "get_cat_ids", type(self).__name__)(inner)

    def get_data_info(self, index: int) -> Any:
        """Return the annotation of a sample, unprocessed.

        Raises:
            ConfigError: If the dataset that has it does not tell.
        """
        dataset, inner = self.place(index)
        return ask(dataset, "get_data_info", type(self).__name__)(inner)

    @property
    def __getitems__(self) -> Callable[[Sequence[int]], list[Any]]:
        """Several samples at a time, which torch asks for where a dataset has this attribute."""
        if not any(hasattr(dataset, "__getitems__") for dataset in self._within()):
            # Nothing would be won, and errors name a sample that is asked for by itself.
            raise AttributeError("__getitems__")
        return self._get_several

    def _get_several(self, indices: Sequence[int]) -> list[Any]:
        samples: list[Any] = [None] * len(indices)
        by_dataset: dict[int, list[tuple[int, Place]]] = {}
        for slot, index in enumerate(indices):
            place = self.place(index)
            by_dataset.setdefault(id(place.dataset), []).append((slot, place))
        for places in by_dataset.values():
            dataset = places[0][1].dataset
            inner = [place.inner for _, place in places]
            several = getattr(dataset, "__getitems__", None)
            found = several(inner) if several else [dataset[one] for one in inner]
            for (slot, _), sample in zip(places, found, strict=True):
                samples[slot] = sample
        return samples


def as_dataset(value: Any, where: str) -> Any:
    """Return ``value``, built if it is a config, if it is a dataset with a length and indices.

    Args:
        value: See above.
        where: The argument that it was given as, for messages.

    Raises:
        ConfigError: If it is no such dataset, or a list of configs.
    """
    dataset = build_from_cfg(value, DATASETS) if isinstance(value, Mapping) else value
    refuse_configs(dataset, where)
    is_indexed = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    # torch's IterableDataset inherits a __getitem__, which fails.
    if not is_indexed or isinstance(dataset, (str, bytes, type, Mapping, IterableDataset)):
        raise ConfigError(
            f"{where}: a dataset with a length and indices, or a dict with its 'type', is needed, "
            f"got {short_repr(dataset)}."
        )
    return dataset


def ask(dataset: Any, method: str, asker: str) -> Callable[[int], Any]:
    """Return a method of a dataset within.

    Raises:
        ConfigError: If it has none of that name.
    """
    found = getattr(dataset, method, None)
    if found is None:
        raise ConfigError(
            f"{asker} asks the dataset within for {method}(index); {type(dataset).__name__} has no "
            "such method. Define it there."
        )
    return found  # type: ignore[no-any-return]
