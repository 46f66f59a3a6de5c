"""The first samples of a dataset, over and over again."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from torch.utils.data import Dataset, IterableDataset
from typing_extensions import override

__all__ = ["KeptSamples"]


class KeptSamples(Dataset[Any]):
    """Reads each sample once, and keeps it; a trial that needs more reads the rest.

    Args:
        source: The dataset; one without a length has as many samples as there are.
    """

    def __init__(self, source: Any) -> None:
        self.source = source
        self._samples: list[Any] = []
        self._rest: Iterator[Any] | None = None
        if isinstance(source, IterableDataset):
            self._rest = iter(source)
        self._size = 0

    def grow_to(self, size: int) -> int:
        """Let the first ``size`` samples be the whole dataset; return how many there really are."""
        if self._rest is not None:
            while len(self._samples) < size:
                try:
                    self._samples.append(next(self._rest))
                except StopIteration:
                    break
            self._size = min(size, len(self._samples))
        else:
            self._size = min(size, len(self.source))
        return self._size

    def __len__(self) -> int:
        return self._size

    @override
    def __getitem__(self, index: int) -> Any:
        while len(self._samples) <= index:
            self._samples.append(self.source[len(self._samples)])
        return copy.deepcopy(self._samples[index])  # what a model does to it stays its own

    def __getattr__(self, name: str) -> Any:
        # What torch and copies ask for by such names is not the source's to answer.
        if name == "source" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.source, name)
