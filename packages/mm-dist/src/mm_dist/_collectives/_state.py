"""What is known about a process group, kept for as long as the group lives."""

import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from mm_dist._errors import ConfigError
from mm_dist._switches import DEBUG_VARIABLE, read_switch

_MAX_SHOWN = 16


@dataclass
class GroupState:
    """One group, as this rank sees it.

    Attributes:
        ranks: The members, as numbers among all ranks, in the order of the group.
        index: Number of this rank within the group.
        is_checked: Whether the ranks compare every call before they communicate.
        served: Devices whose tensors the group's backend takes as they are.
        direct: Reductions that the backend does in place; see ``all_reduce``.
        verified: Fingerprints of dicts that all ranks were seen to share.
        frames: What travels around those dicts, where it has been made already.
        find_side_group: Returns the gloo group beside this one, while there is one.
    """

    ranks: Sequence[int]
    index: int
    is_checked: bool
    served: set[torch.device] = field(default_factory=set)
    direct: dict[tuple[str, torch.dtype, torch.device], Any] = field(default_factory=dict)
    verified: set[int] = field(default_factory=set)
    frames: dict[Any, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    find_side_group: Callable[[], Any] = lambda: None

    @property
    def world_size(self) -> int:
        """Number of ranks in the group."""
        return len(self.ranks)


# By group, not by its name or id, which torch reuses after a group was destroyed.
_states: weakref.WeakKeyDictionary[Any, GroupState] = weakref.WeakKeyDictionary()


@dataclass
class _Latest:
    find_group: Callable[[], Any]
    state: GroupState


# Most programs use one group: this saves looking it up.
_latest: list[_Latest] = []


def latest_state(group: Any = None) -> GroupState | None:
    """Return what is known about a group, if it is the one that was asked for last."""
    if not _latest:
        return None
    key = dist.group.WORLD if group is None else group
    return _latest[0].state if key is not None and _latest[0].find_group() is key else None


def group_state(group: Any = None) -> GroupState:
    """Return what is known about a group of which this rank is a member.

    Args:
        group: A process group. Defaults to that of all ranks.

    Raises:
        ConfigError: If this rank is not a member.
    """
    key = dist.group.WORLD if group is None else group
    try:
        state = _states[key]
    except (KeyError, TypeError):  # TypeError: what torch gives to those outside is no group
        state = _read_state(key)
    _latest[:] = [_Latest(weakref.ref(key), state)]
    return state


def _read_state(group: Any) -> GroupState:
    index = int(dist.get_rank(group))
    if index < 0:
        raise ConfigError(
            f"Rank {dist.get_rank()} is not in the group that it passed to a collective; let "
            "only the members of a group call it."
        )
    ranks = _shorten(dist.get_process_group_ranks(group))
    state = _states[group] = GroupState(ranks, index, is_checked=_is_check_on())
    return state


def _shorten(ranks: Sequence[int]) -> Sequence[int]:
    """Return evenly spaced ranks as a range: what is kept must not grow with the job."""
    step = ranks[1] - ranks[0] if len(ranks) > 1 else 1
    even = range(ranks[0], ranks[0] + step * len(ranks), step)
    return even if list(even) == list(ranks) else tuple(ranks)


def _is_check_on() -> bool:
    """Return whether this process asked for checked collectives, of us or of torch."""
    if read_switch(os.environ, DEBUG_VARIABLE, default=False):
        return True
    level = dist.get_debug_level()  # type: ignore[attr-defined]
    return bool(level == dist.DebugLevel.DETAIL)  # type: ignore[attr-defined]


def check_member(name: str, rank: int, state: GroupState) -> int:
    """Return the number within the group of a rank that is counted among all ranks.

    Raises:
        ConfigError: If the rank is not in the group; all its members find that out.
    """
    if rank not in state.ranks:
        raise ConfigError(
            f"{name}={rank!r} is not in the group, whose ranks are {_describe(state.ranks)}; ranks "
            "are counted among all processes, not within the group."
        )
    return state.ranks.index(rank)


def _describe(ranks: Sequence[int]) -> str:
    if len(ranks) <= _MAX_SHOWN:
        return str(list(ranks))
    return f"{ranks[0]} to {ranks[-1]}, {len(ranks)} in all"
