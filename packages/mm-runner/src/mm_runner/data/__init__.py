"""From dataloader configs to batches."""

from ._collate import pseudo_collate
from ._dataloader import DataSettings, build_dataloader
from ._sampler import DefaultSampler

__all__ = ["DataSettings", "DefaultSampler", "build_dataloader", "pseudo_collate"]
