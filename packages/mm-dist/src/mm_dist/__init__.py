"""Launchers, process groups, collectives and model wrappers for distributed PyTorch."""

from importlib.metadata import version

from mm_dist._collectives._copy import all_gather, broadcast, gather
from mm_dist._collectives._data_device import cast_data_device, get_comm_device, get_data_device
from mm_dist._collectives._objects import all_gather_object, broadcast_object_list, gather_object
from mm_dist._collectives._reduction import (
    all_reduce,
    all_reduce_dict,
    all_reduce_params,
    sync_random_seed,
)
from mm_dist._collectives._results import collect_results, collect_results_cpu, collect_results_gpu
from mm_dist._devices import available_device_type, local_device
from mm_dist._errors import (
    ArgumentTypeError,
    CollectiveError,
    ConfigError,
    GradientSyncError,
    LaunchError,
    MMDistError,
    TorchVersionError,
)
from mm_dist._info import (
    barrier,
    get_backend,
    get_dist_info,
    get_local_rank,
    get_local_size,
    get_rank,
    get_world_size,
    is_main_process,
    master_only,
)
from mm_dist._launchers._environment import LaunchEnvironment

# The entry points of mm.launchers name the launchers here.
from mm_dist._launchers._mpi import MPILauncher  # noqa: F401
from mm_dist._launchers._pytorch import PyTorchLauncher  # noqa: F401
from mm_dist._launchers._selection import (
    NoLauncher,  # noqa: F401
    add_launcher_arguments,
    infer_launcher,
)
from mm_dist._launchers._slurm import SlurmLauncher  # noqa: F401
from mm_dist._local_group import get_default_group, get_local_group, init_local_group
from mm_dist._process_group._arguments import check_dist_arguments
from mm_dist._process_group._ending import destroy_dist
from mm_dist._process_group._init import init_dist
from mm_dist._process_group._timeouts import enter_steady_state
from mm_dist._progress import mark_iteration
from mm_dist._state import DistInfo, is_distributed
from mm_dist._wrappers._recognition import is_model_wrapper
from mm_dist._wrappers._sync_batch_norm import convert_sync_batchnorm, revert_sync_batchnorm
from mm_dist._wrappers.ddp import MMDistributedDataParallel
from mm_dist._wrappers.fsdp import MMFullyShardedDataParallel
from mm_dist._wrappers.separate_ddp import MMSeparateDistributedDataParallel

__all__ = [
    "ArgumentTypeError",
    "CollectiveError",
    "ConfigError",
    "DistInfo",
    "GradientSyncError",
    "LaunchEnvironment",
    "LaunchError",
    "MMDistError",
    "MMDistributedDataParallel",
    "MMFullyShardedDataParallel",
    "MMSeparateDistributedDataParallel",
    "TorchVersionError",
    "add_launcher_arguments",
    "all_gather",
    "all_gather_object",
    "all_reduce",
    "all_reduce_dict",
    "all_reduce_params",
    "available_device_type",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "cast_data_device",
    "check_dist_arguments",
    "collect_results",
    "collect_results_cpu",
    "collect_results_gpu",
    "convert_sync_batchnorm",
    "destroy_dist",
    "enter_steady_state",
    "gather",
    "gather_object",
    "get_backend",
    "get_comm_device",
    "get_data_device",
    "get_default_group",
    "get_dist_info",
    "get_local_group",
    "get_local_rank",
    "get_local_size",
    "get_rank",
    "get_world_size",
    "infer_launcher",
    "init_dist",
    "init_local_group",
    "is_distributed",
    "is_main_process",
    "is_model_wrapper",
    "local_device",
    "mark_iteration",
    "master_only",
    "revert_sync_batchnorm",
    "sync_random_seed",
]
__version__ = version("mm-dist")
