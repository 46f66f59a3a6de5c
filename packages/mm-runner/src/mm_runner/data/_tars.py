"""Tar files as a stream, read by webdataset."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from mm_runner.errors import ConfigError, import_extra

from ._sampler import draw_order

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


class TarStream:
    """Source of a :class:`StreamDataset`: samples of tar files, as dicts of undecoded bytes.

    Files that differ only after the first dot of their name are one sample, with these suffixes as
    keys, ``__key__`` and ``__url__``. Resuming skips whole tars, and reads one up to the place.

    Args:
        urls: Paths or what webdataset reads: ``"train-{000..099}.tar"``, ``"pipe:..."``, a list.
        shuffle: Draw another order of the tars each epoch.
        seed: Of that order, with the epoch.

    Raises:
        ConfigError: If webdataset is not installed, or there is no tar.
    """

    def __init__(self, urls: str | Sequence[str], *, shuffle: bool = False, seed: int = 0) -> None:
        lists = import_extra("webdataset.shardlists", "stream", "TarStream")
        self.urls = list(lists.expand_urls(urls) if isinstance(urls, str) else urls)
        if not self.urls:
            raise ConfigError("urls: no tar file is given.")
        self.shuffle, self.seed, self.epoch = shuffle, seed, 0
        self._at = self._start = (0, 0)  # tars that are done, samples of the next one

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of ``epoch``, counted from 0."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        from webdataset.gopen import gopen  # noqa: PLC0415 - an extra, as the next
        from webdataset.tariterators import group_by_keys, tar_file_expander  # noqa: PLC0415

        order, (first, done) = self.urls, self._start
        if self.shuffle:
            order = [order[i] for i in draw_order(len(order), self.seed, self.epoch)]
        for number in range(first, len(order)):
            with closing(gopen(order[number])) as file:
                files = tar_file_expander([{"url": order[number], "stream": file}])
                for index, sample in enumerate(group_by_keys(files)):
                    if number > first or index >= done:
                        self._at = (number, index + 1)
                        yield sample

    def state_dict(self) -> dict[str, Any]:
        """Return the place after the latest sample."""
        return {"tar": self._at[0], "sample": self._at[1]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let iterations begin at a place of :meth:`state_dict`."""
        self._at = self._start = (int(state["tar"]), int(state["sample"]))
