"""Agree on a random seed."""

import secrets
from typing import Any

import torch

from mm_dist._collectives._reduction import all_reduce
from mm_dist._info import is_main_process


def sync_random_seed(group: Any = None) -> int:
    """Return a random seed that is the same on all ranks.

    No random number generator is used or changed: the seed comes from the operating system.

    Args:
        group: Ranks that agree. Defaults to all.

    Returns:
        A number of at least 0 and less than ``2**31``.

    Example:
        >>> 0 <= sync_random_seed() < 2**31
        True
    """
    # The others add 0; a sum needs no translation of the group's rank 0 into a global rank.
    own = secrets.randbelow(2**31) if is_main_process(group) else 0
    seed = torch.tensor(own, dtype=torch.int64)
    all_reduce(seed, "sum", group)
    return int(seed)
