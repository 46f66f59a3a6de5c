"""From dataloader configs to batches."""

from ._batch_sampler import SeekableBatchSampler
from ._collate import pseudo_collate
from ._dataloader import build_dataloader, num_batches
from ._failing_sample import failing_sample
from ._in_process import begin_batches
from ._map_tensors import map_tensors
from ._position import DataPosition, announce_epoch
from ._prefetch import BatchFeed, as_channels_last, feed_of_run
from ._sampler import DefaultSampler, InfiniteSampler, is_endless
from ._settings import DataSettings
from ._train_batches import TrainBatches
from ._worker_seed import batch_seed
from ._worker_signals import ignore_stop_signals
from ._workers import stop_persistent_workers, stop_workers
from .wrappers import ClassBalancedDataset, ConcatDataset, RepeatDataset

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
    "begin_batches",
    "build_dataloader",
    "failing_sample",
    "feed_of_run",
    "ignore_stop_signals",
    "is_endless",
    "map_tensors",
    "num_batches",
    "pseudo_collate",
    "stop_persistent_workers",
    "stop_workers",
]
