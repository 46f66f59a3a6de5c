"""Create the process group of this process, describe it, and end it."""

from mm_dist._process_group._arguments import check_dist_arguments
from mm_dist._process_group._current import current_info
from mm_dist._process_group._ending import destroy_dist
from mm_dist._process_group._init import init_dist
from mm_dist._process_group._timeouts import enter_steady_state

__all__ = [
    "check_dist_arguments",
    "current_info",
    "destroy_dist",
    "enter_steady_state",
    "init_dist",
]
