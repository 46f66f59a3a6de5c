"""From dataloader configs to batches."""

from ._batches import map_tensors, pseudo_collate
from ._dataloader import build_dataloader, num_batches
from ._failing_sample import failing_sample
from ._feed import BatchFeed, as_channels_last, feed_of_run
from ._sampler import DefaultSampler, InfiniteSampler, is_endless
from ._seekable import DataSettings, SeekableBatchSampler
from ._train_batches import DataPosition, TrainBatches, announce_epoch
from ._workers import batch_seed, ignore_stop_signals
from ._wrappers import ClassBalancedDataset, ConcatDataset, RepeatDataset

__all__ = [
    "BatchFeed",
    "ClassBalancedDataset",
    "ConcatDataset",
    "DataPosition",
    "DataSettings",
    "DefaultSampler",
    "InfiniteSampler",
    "RepeatDataset",
    "SeekableBatchSampler",
    "TrainBatches",
    "announce_epoch",
    "as_channels_last",
    "batch_seed",
    "build_dataloader",
    "failing_sample",
    "feed_of_run",
    "ignore_stop_signals",
    "is_endless",
    "map_tensors",
    "num_batches",
    "pseudo_collate",
]
