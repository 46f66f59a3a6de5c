"""The beginning of a dataset."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset
from typing_extensions import override

__all__ = ["FirstSamples"]


class FirstSamples(Dataset[Any]):
    """The first samples of a dataset, whose other attributes it has too, such as ``metainfo``.

    Args:
        dataset: With a length.
        size: Samples at most.
    """

    def __init__(self, dataset: Any, size: int) -> None:
        self.dataset = dataset
        self._size = min(len(dataset), size)

    def __len__(self) -> int:
        return self._size

    @override
    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]

    def __getattr__(self, name: str) -> Any:
        # Asked for by pickle before there is a dataset; and torch looks for ways to read a batch.
        if name.startswith("__") or name == "dataset":
            raise AttributeError(name)
        return getattr(self.dataset, name)
