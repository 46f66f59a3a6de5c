"""Predictions that are there already, in chunks for this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any

import mm_dist
from mm_runner.data import pseudo_collate
from mm_runner.errors import ConfigError
from mm_runner.registry import short_repr

from ._predictions import Predictions

__all__ = ["OfflineChunks"]


class OfflineChunks:
    """Deals samples out to the processes like cards, as they were when they were predicted.

    Args:
        data_samples: Predictions, one for each sample.
        data: What they were predicted from, as many; or ``None``.
        chunk_size: Samples at a time.

    Attributes:
        size: How many samples there are, on all processes, once they were gone through.

    Raises:
        ConfigError: If an argument is of another kind.
    """

    def __init__(
        self, data_samples: Iterable[Any], data: Sequence[Any] | None, chunk_size: int
    ) -> None:
        if not isinstance(chunk_size, int) or isinstance(chunk_size, bool) or chunk_size < 1:
            raise ConfigError(f"chunk_size: a positive integer is needed, got {chunk_size!r}.")
        if not isinstance(data_samples, Iterable) or isinstance(data_samples, (str, dict)):
            raise ConfigError(
                "data_samples: an entry for each sample is needed, as a list, or what "
                f"load_predictions returns; got {short_repr(data_samples)}."
            )
        if data is not None and not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
            raise ConfigError(
                f"data: a sequence, such as a dataset, is needed, got {short_repr(data)}."
            )
        self._samples, self._data, self._chunk_size = data_samples, data, chunk_size
        self.size = 0
        if isinstance(data_samples, Sized):
            self._check_data(len(data_samples))

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        """Yield the predictions of each chunk, and the data, which are ``None`` if none are there.

        Raises:
            ConfigError: At the end, if there was no sample, or another number than of data.
        """
        rank, world_size = mm_dist.get_dist_info()
        chunk: dict[int, Any] = {}
        for index, sample in enumerate(self._samples):
            self.size = index + 1
            if index % world_size != rank:
                continue
            chunk[index] = sample
            if len(chunk) == self._chunk_size:
                yield self._as_step_gives_it(chunk)
                chunk = {}
        self._check_data(self.size)
        if chunk:
            yield self._as_step_gives_it(chunk)
        if self.size == 0:
            raise ConfigError("data_samples: there is not one sample to evaluate.")

    def _as_step_gives_it(self, chunk: dict[int, Any]) -> tuple[Any, Any]:
        samples: Any = list(chunk.values())
        if isinstance(self._samples, Predictions):
            samples = self._samples.select(list(chunk))
        if self._data is None:
            return samples, None
        return samples, pseudo_collate([self._data[index] for index in chunk])

    def _check_data(self, size: int) -> None:
        if self._data is not None and len(self._data) != size:
            raise ConfigError(
                f"data: {len(self._data)} were given for {size} predictions; give one for each, "
                "in the same order, or none."
            )
