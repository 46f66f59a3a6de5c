"""From dataloader configs to batches."""

from ._batches import as_channels_last, default_collate, map_tensors, pseudo_collate
from ._dataloader import build_dataloader, ignore_stop_signals, num_batches
from ._datasets import ClassBalancedDataset, ConcatDataset, RepeatDataset, check_dataset
from ._feed import BatchFeed, DataPosition, failing_sample
from ._mds import MDSStream
from ._sampler import (
    DataSettings,
    DefaultSampler,
    InfiniteSampler,
    SeekableBatchSampler,
    announce_epoch,
    batch_seed,
    is_endless,
    is_shuffled,
)
from ._stream import StreamDataset, StreamSampler
from ._tars import TarStream

__all__ = [
    "BatchFeed",
    "ClassBalancedDataset",
    "ConcatDataset",
    "DataPosition",
    "DataSettings",
    "DefaultSampler",
    "InfiniteSampler",
    "MDSStream",
    "RepeatDataset",
    "SeekableBatchSampler",
    "StreamDataset",
    "StreamSampler",
    "TarStream",
    "announce_epoch",
    "as_channels_last",
    "batch_seed",
    "build_dataloader",
    "check_dataset",
    "default_collate",
    "failing_sample",
    "ignore_stop_signals",
    "is_endless",
    "is_shuffled",
    "map_tensors",
    "num_batches",
    "pseudo_collate",
]
