"""Collectives under MMEngine's names, right in a single process too."""

from mm_dist._collectives._copy import all_gather, broadcast, gather
from mm_dist._collectives._objects import all_gather_object, broadcast_object_list, gather_object
from mm_dist._collectives._reduction import all_reduce, all_reduce_dict
from mm_dist._collectives._results import collect_results
from mm_dist._collectives._seed import sync_random_seed

__all__ = [
    "all_gather",
    "all_gather_object",
    "all_reduce",
    "all_reduce_dict",
    "broadcast",
    "broadcast_object_list",
    "collect_results",
    "gather",
    "gather_object",
    "sync_random_seed",
]
