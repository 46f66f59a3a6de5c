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
    """The group that ``init_dist`` created, and what has to be undone when it ends.

    Attributes:
        group: torch's default group.
        info: What ``init_dist`` returned; its timeout follows ``enter_steady_state``.
        replaced: Former values of the environment variables that were set.
        environment: What the launcher said before those variables were set.
        store: Where the ranks met. On rank 0 it may be the server: it lives as long as this.
        address: Where others can reach that server; ``None`` if the backend met without one.
        restore_hook: Gives the interpreter its former exception hook back.
        hang_report: The handle of the hang report, where it is on.
        steady_timeout: What ``enter_steady_state`` still has to set; ``None`` for nothing.
        pid: The process that joined; a child that was forked from it did not.
    """

    group: Any
    info: DistInfo
    replaced: Mapping[str, str | None]
    environment: LaunchEnvironment
    store: Any = None
    address: StoreAddress | None = None
    restore_hook: Callable[[], None] | None = None
    hang_report: Any = None
    steady_timeout: timedelta | None = None
    pid: int = field(default_factory=os.getpid)


@dataclass
class ProcessState:
    """The one record of this process: torch keeps one default group per process, too.

    Attributes:
        own: The group that ``init_dist`` created, until ``destroy_dist``.
        failed: This process's place, once an uncaught exception has ended its part in the group:
            exit handlers must not all take themselves for rank 0.
        exit_status: What the program passed to ``sys.exit`` or ``exit``.
        num_joined: How many groups this process has set out to join; the same on all ranks.
        kept_store: The store of the group that ended last, on rank 0, until the next one or the end
            of the process: other ranks may have come back to it already.
        local_group: A default group, and the ranks of this machine in it, once asked for.
    """

    own: OwnGroup | None = None
    failed: DistInfo | None = None
    exit_status: int = 0
    num_joined: int = 0
    kept_store: Any = None
    local_group: tuple[Any, Any] | None = None


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
