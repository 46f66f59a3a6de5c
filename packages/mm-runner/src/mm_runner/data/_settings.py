"""What dataloaders need to know of the run."""

from __future__ import annotations

from typing import NamedTuple

import torch

__all__ = ["DataSettings"]


class DataSettings(NamedTuple):
    """What a loader needs to know of the run.

    ``seed`` is that of the samplers and the workers, ``rank`` makes the workers of each process
    draw different numbers. ``generator`` seeds the workers; the run sets it anew each epoch.
    ``device`` is where batches go.
    """

    seed: int
    generator: torch.Generator
    rank: int = 0
    world_size: int = 1
    device: torch.device | None = None
