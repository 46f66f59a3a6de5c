"""Create the process group of this process, ask about it, and end it."""

from mm_dist._process_group._current import current_info
from mm_dist._process_group._ending import destroy_dist
from mm_dist._process_group._init import check_dist_arguments, init_dist
from mm_dist._process_group._local_group import (
    get_default_group,
    get_local_group,
    init_local_group,
)
from mm_dist._process_group._steady import enter_steady_state, steady_switch
from mm_dist._state import is_distributed

__all__ = [
    "check_dist_arguments",
    "current_info",
    "destroy_dist",
    "enter_steady_state",
    "get_default_group",
    "get_local_group",
    "init_dist",
    "init_local_group",
    "is_distributed",
    "steady_switch",
]
