"""What a process knows about itself and the others."""

from dataclasses import dataclass
from datetime import timedelta

import torch


@dataclass(frozen=True)
class DistInfo:
    """This process among the others.

    Attributes:
        rank: Number of this process among all, from 0.
        world_size: How many processes there are.
        local_rank: Number of this process among those of its machine, from 0.
        local_world_size: How many there are on this machine; ``None`` if nothing says so.
        launcher: Name of the launcher that started them.
        backend: Backend of the process group; ``None`` without a group.
        device: The device that this process computes on.
        timeout: How long a collective may take, as read back from the group; ``None`` without a
            group, and where its backend has no such option.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int | None
    launcher: str
    backend: str | None
    device: torch.device
    timeout: timedelta | None = None
