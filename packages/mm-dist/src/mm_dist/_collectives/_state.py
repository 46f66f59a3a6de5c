"""Facts about a process group, cached for as long as the group lives."""

import os
import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from mm_dist._errors import ConfigError
from mm_dist._state import DEBUG_VARIABLE, read_switch


@dataclass
class GroupState:
    """Cached facts about one group."""

    ranks: tuple[int, ...]
    index: int
    is_checked: bool
    served: set[torch.device] = field(default_factory=set)


# By group, not by its name or id, which torch reuses after a group was destroyed.
_states: weakref.WeakKeyDictionary[Any, GroupState] = weakref.WeakKeyDictionary()


def group_state(group: Any = None) -> GroupState:
    """Return the cached facts about a group, by default that of all ranks."""
    key = dist.group.WORLD if group is None else group
    try:
        return _states[key]
    except (KeyError, TypeError):  # TypeError: torch's placeholder for non-members
        pass
    index = int(dist.get_rank(key))
    if index < 0:
        raise ConfigError(
            f"Rank {dist.get_rank()} is not in the group that it passed to a collective; let "
            "only the members of a group call it."
        )
    is_checked = read_switch(os.environ, DEBUG_VARIABLE, default=False)
    state = GroupState(tuple(dist.get_process_group_ranks(key)), index, is_checked)
    _states[key] = state
    return state


def check_member(name: str, rank: int, state: GroupState) -> int:
    """Return the rank within the group of a global rank."""
    if rank not in state.ranks:
        count = len(state.ranks)
        shown = list(state.ranks) if count <= 16 else f"{state.ranks[0]} to {state.ranks[-1]}"
        raise ConfigError(
            f"{name}={rank!r} is not in the group, whose ranks are {shown}; ranks are counted "
            "among all processes, not within the group."
        )
    return state.ranks.index(rank)
