"""How many steps it takes to go through the training data once."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mm_runner.data import is_endless

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

__all__ = ["epoch_length"]


def epoch_length(loader: DataLoader[Any], world_size: int) -> int | None:
    """Return the steps of a pass over the data, ``None`` where the data have no length.

    Args:
        loader: Of the training.
        world_size: Number of processes; an ``InfiniteSampler`` counts the samples of all.
    """
    length: int | None = None
    with suppress(TypeError):
        length = len(loader)
    if length and is_endless(loader):
        return max(length // world_size, 1)
    return length or None
