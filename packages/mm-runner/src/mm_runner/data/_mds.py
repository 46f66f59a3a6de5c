"""MosaicML's MDS shards as a stream, read by mosaicml-streaming."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset
from typing_extensions import override

from mm_runner.errors import ConfigError

from ._sampler import draw_order


class MDSStream(Dataset[dict[str, Any]]):
    """Source of a :class:`StreamDataset`: samples of MDS shards, by their number in the epoch.

    Shards are downloaded when a sample of theirs is read first, and stay in ``local``. Of Mosaic's
    own ``StreamingDataset`` nothing else is used: no shared memory, and no environment variables.

    Args:
        local: Folder of the shards.
        remote: Where missing ones come from, as Mosaic's ``Stream`` takes it.
        split: Folder within both.
        shuffle: Draw another order of the shards each epoch.
        seed: Of that order, with the epoch.

    Raises:
        ConfigError: If mosaicml-streaming is not installed.
    """

    def __init__(
        self,
        local: str,
        remote: str | None = None,
        split: str | None = None,
        *,
        shuffle: bool = False,
        seed: int = 0,
    ) -> None:
        try:
            from filelock import FileLock  # noqa: PLC0415 - an extra, as the next
            from streaming.base.stream import Stream  # noqa: PLC0415
            from streaming.base.world import World  # noqa: PLC0415
        except ImportError as error:
            raise ConfigError(
                "MDSStream needs MosaicML's library: pip install mosaicml-streaming."
            ) from error
        self._stream = Stream(
            local=local,
            remote=remote,
            split=split,
            download_retry=2,
            download_timeout=60,
            keep_zip=False,
        )
        Path(local, split or "").mkdir(parents=True, exist_ok=True)
        self._lock_file = str(Path(local, ".mm_runner.lock"))
        with FileLock(self._lock_file):  # a process of its own, whatever the launcher has set
            self._shards = self._stream.get_shards(World(1, 1, 1, 0), allow_unsafe_types=False)
        self.shuffle, self.seed = shuffle, seed
        self._ready: set[str] = set()
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of ``epoch``, counted from 0."""
        order = draw_order(len(self._shards), self.seed, epoch)
        self._order = [self._shards[i] for i in order] if self.shuffle else self._shards
        self._ends = list(accumulate(shard.samples for shard in self._order))

    def __len__(self) -> int:
        length: int = self._ends[-1]
        return length

    @override
    def __getitem__(self, index: int) -> dict[str, Any]:
        number = bisect_right(self._ends, index)
        shard: Any = self._order[number]
        if shard.raw_data.basename not in self._ready:
            from filelock import FileLock  # noqa: PLC0415 - an extra

            with FileLock(self._lock_file):  # for all processes of this machine
                self._stream.prepare_shard(shard)
            self._ready.add(shard.raw_data.basename)
        sample: dict[str, Any] = shard[index - (self._ends[number] - shard.samples)]
        return sample
