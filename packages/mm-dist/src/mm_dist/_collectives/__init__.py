"""Collectives under MMEngine's names, right in a single process too."""

from mm_dist._collectives._copy import all_gather, broadcast, gather
from mm_dist._collectives._data_device import cast_data_device, get_comm_device, get_data_device
from mm_dist._collectives._objects import all_gather_object, broadcast_object_list, gather_object
from mm_dist._collectives._reduction import (
    all_reduce,
    all_reduce_dict,
    all_reduce_params,
    sync_random_seed,
)
from mm_dist._collectives._results import (
    collect_results,
    collect_results_cpu,
    collect_results_gpu,
)

__all__ = [
    "all_gather",
    "all_gather_object",
    "all_reduce",
    "all_reduce_dict",
    "all_reduce_params",
    "broadcast",
    "broadcast_object_list",
    "cast_data_device",
    "collect_results",
    "collect_results_cpu",
    "collect_results_gpu",
    "gather",
    "gather_object",
    "get_comm_device",
    "get_data_device",
    "sync_random_seed",
]
