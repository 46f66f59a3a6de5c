"""A dataset, several times over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from mm_runner.errors import ConfigError

from ._abstract import AbstractDatasetWrapper, Place, as_dataset

__all__ = ["RepeatDataset"]


class RepeatDataset(AbstractDatasetWrapper):
    """Goes through a dataset several times in one epoch.

    What happens between epochs then happens less often: with a small dataset and many workers that
    can be most of the time.

    Args:
        dataset: A dataset with a length and indices, or its config.
        times: How often its samples come in an epoch.
        lazy_init: Leave :meth:`full_init` to whoever first asks for the length or a sample.

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
        if not isinstance(times, int) or isinstance(times, bool) or times < 1:
            raise ConfigError(f"times: a positive integer is needed, got {times!r}.")
        self.dataset = as_dataset(dataset, "dataset")
        self.times = times
        super().__init__(lazy_init=lazy_init)

    @override
    def _within(self) -> Sequence[Any]:
        return (self.dataset,)

    @override
    def _count(self) -> int:
        self._num_inner = len(self.dataset)
        return self.times * self._num_inner

    @override
    def _place(self, position: int) -> Place:
        return Place(self.dataset, position % self._num_inner)
