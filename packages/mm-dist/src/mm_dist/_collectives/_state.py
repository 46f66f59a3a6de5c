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


@dataclass
class GroupState:
    """One group, as this rank sees it.

    Attributes:
        ranks: The members, as numbers among all ranks, in the order of the group.
        index: Number of this rank within the group.
        is_checked: Whether the ranks compare every call before they communicate.
        served: Devices whose tensors the group's backend takes as they are.
        verified: Signatures of dicts that all ranks were seen to share.
        find_side_group: Returns the gloo group beside this one, while there is one.
    """

    ranks: Sequence[int]
    index: int
    is_checked: bool
    served: set[torch.device] = field(default_factory=set)
    verified: set[Any] = field(default_factory=set)
    find_side_group: Callable[[], Any] = lambda: None

    @property
    def world_size(self) -> int:
        """Number of ranks in the group."""
        return len(self.ranks)


# By group, not by its name or id, which torch reuses after a group was destroyed.
_states: weakref.WeakKeyDictionary[Any, GroupState] = weakref.WeakKeyDictionary()


def group_state(group: Any = None) -> GroupState:
    """Return what is known about a group of which this rank is a member.

    Args:
        group: A process group. Defaults to that of all ranks.

    Raises:
        ConfigError: If this rank is not a member.
    """
    key = dist.group.WORLD if group is None else group
    try:
        return _states[key]
    except (KeyError, TypeError):  # TypeError: what torch gives to those outside is no group
        pass
    index = int(dist.get_rank(key))
    if index < 0:
        raise ConfigError(
            f"Rank {dist.get_rank()} is not in the group that it passed to a collective; let "
            "only the members of a group call it."
        )
    state = _states[key] = GroupState(
        _shorten(dist.get_process_group_ranks(key)), index, is_checked=_is_check_on()
    )
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
        count = len(state.ranks)
        shown = list(state.ranks) if count <= 16 else f"{state.ranks[0]} to {state.ranks[-1]}"
        raise ConfigError(
            f"{name}={rank!r} is not in the group, whose ranks are {shown}; ranks are counted "
            "among all processes, not within the group."
        )
    return state.ranks.index(rank)
