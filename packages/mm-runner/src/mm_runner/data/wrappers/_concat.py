"""Several datasets as one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from typing_extensions import override

from mm_runner.errors import ConfigError
from mm_runner.registry import short_repr

from ._abstract import AbstractDatasetWrapper, Place, as_dataset

__all__ = ["ConcatDataset"]


class ConcatDataset(AbstractDatasetWrapper):
    """Puts datasets one behind the other.

    Finding a sample takes a search among the datasets, whatever their sizes; nothing is listed.

    Args:
        datasets: Datasets with a length and indices, or their configs.
        lazy_init: Leave :meth:`full_init` to whoever first asks for the length or a sample.
        ignore_keys: Key or keys of ``metainfo`` in which the datasets may differ. Metrics and
            models are told the first one's ``metainfo``, so everything else has to be the same.

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
        is_list = isinstance(datasets, Sequence) and not isinstance(datasets, (str, bytes))
        if not is_list or not datasets:
            raise ConfigError(
                "datasets: a list of datasets or their configs, at least one, is needed, got "
                f"{short_repr(datasets)}."
            )
        self.datasets = [as_dataset(one, f"datasets[{i}]") for i, one in enumerate(datasets)]
        self.ignore_keys = _as_keys(ignore_keys)
        _check_metainfo(self.datasets, self.ignore_keys)
        super().__init__(lazy_init=lazy_init)

    @property
    def cumulative_sizes(self) -> list[int]:
        """For each dataset, how many samples it and those before it have."""
        self.full_init()
        return list(self._ends)

    @override
    def _within(self) -> Sequence[Any]:
        return self.datasets

    @override
    def _count(self) -> int:
        self._ends = list(accumulate(map(len, self.datasets)))
        return self._ends[-1]

    @override
    def _place(self, position: int) -> Place:
        which = bisect_right(self._ends, position)
        return Place(self.datasets[which], position - (self._ends[which - 1] if which else 0))


def _as_keys(keys: Any) -> list[str]:
    listed = [keys] if isinstance(keys, str) else [] if keys is None else keys
    if not isinstance(listed, (list, tuple)) or not all(isinstance(key, str) for key in listed):
        raise ConfigError(f"ignore_keys: a key or a list of keys is needed, got {keys!r}.")
    return list(listed)


def _check_metainfo(datasets: Sequence[Any], ignore_keys: Sequence[str]) -> None:
    """Raise if a dataset says something else of itself than the first."""
    found = [getattr(dataset, "metainfo", None) for dataset in datasets]
    told = [one if isinstance(one, Mapping) else {} for one in found]
    for index, (dataset, metainfo) in enumerate(zip(datasets[1:], told[1:], strict=True), 1):
        for key in {**told[0], **metainfo}:
            if key not in ignore_keys and not _is_same(told[0], metainfo, key):
                raise ConfigError(
                    f"datasets[{index}]: the metainfo of {type(dataset).__name__} has "
                    f"{_entry(metainfo, key)}, that of datasets[0] {_entry(told[0], key)}. Metrics "
                    f"are told the first one's: let them be the same, or give "
                    f"ignore_keys=[{key!r}] if they may differ."
                )


def _is_same(one: Mapping[str, Any], other: Mapping[str, Any], key: str) -> bool:
    return key in one and key in other and _are_equal(one[key], other[key])


def _are_equal(one: Any, other: Any) -> bool:
    if one is other or type(one) is not type(other):
        return one is other
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_are_equal(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_are_equal, one, other))
    if hasattr(one, "shape"):  # compared entry by entry, which gives no single answer
        return one.shape == other.shape and bool((one == other).all())
    return bool(one == other) or bool(one != one and other != other)  # noqa: PLR0124 - nan


def _entry(metainfo: Mapping[str, Any], key: str) -> str:
    return f"{key}={short_repr(metainfo[key])}" if key in metainfo else f"no {key!r}"
