"""What this process knows about the group that ``init_dist`` created, beyond what torch knows."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from mm_dist._launchers._environment import LaunchEnvironment
from mm_dist._rendezvous._store import StoreAddress

DEBUG_VARIABLE = "MM_DIST_DEBUG"
HANG_REPORT_VARIABLE = "MM_DIST_HANG_REPORT"
_WORDS = {
    **dict.fromkeys(("1", "true", "on", "yes"), True),
    **dict.fromkeys(("0", "false", "off", "no"), False),
}


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


@dataclass
class OwnGroup:
    """The group that ``init_dist`` created, and what has to be undone when it ends."""

    group: Any
    info: DistInfo  # its timeout follows enter_steady_state
    replaced: Mapping[str, str | None]  # former values of environment variables
    environment: LaunchEnvironment  # as read before those variables were set
    store: Any = None  # on rank 0 it may be the server, which lives as long as this
    address: StoreAddress | None = None  # None if the backend met without a store
    restore_hook: Callable[[], None] | None = None
    hang_report: Any = None
    steady_timeout: timedelta | None = None  # what enter_steady_state still has to set
    pid: int = field(default_factory=os.getpid)  # a forked child did not join


@dataclass
class ProcessState:
    """The one record of this process: torch keeps one default group per process, too."""

    own: OwnGroup | None = None
    # This process's place, once an uncaught exception has ended its part in the group: exit
    # handlers must not all take themselves for rank 0.
    failed: DistInfo | None = None
    num_joined: int = 0  # groups that this process has set out to join; the same on all ranks
    # Of the group that ended last, on rank 0: other ranks may have come back to it already.
    kept_store: Any = None
    local_group: tuple[Any, Any] | None = None  # a default group, and this machine's part of it


state = ProcessState()


def is_distributed() -> bool:
    """Return whether this process belongs to a process group."""
    return dist.is_available() and dist.is_initialized()


def find_own_group() -> OwnGroup | None:
    """Return the group that ``init_dist`` created, if it still is torch's default group."""
    own = state.own
    is_current = own is not None and own.group is not None and own.group is dist.group.WORLD
    return own if is_current else None


def read_switch(env: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Return whether a variable says yes; the default, where it is not set or says neither."""
    return _WORDS.get(env.get(name, "").strip().lower(), default)
