"""From dataloader configs to batches."""

from ._collate import pseudo_collate
from ._dataloader import build_dataloader, num_batches
from ._sampler import DefaultSampler, InfiniteSampler
from ._settings import DataSettings

__all__ = [
    "DataSettings",
    "DefaultSampler",
    "InfiniteSampler",
    "build_dataloader",
    "num_batches",
    "pseudo_collate",
]
