"""Launchers, process groups, collectives and model wrappers for distributed PyTorch."""

from importlib.metadata import version

from mm_dist._collectives import (
    all_gather,
    all_gather_object,
    all_reduce,
    all_reduce_dict,
    all_reduce_params,
    broadcast,
    broadcast_object_list,
    cast_data_device,
    collect_results,
    collect_results_cpu,
    collect_results_gpu,
    gather,
    gather_object,
    get_comm_device,
    get_data_device,
    sync_random_seed,
)
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
from mm_dist._launchers import (
    LaunchEnvironment,
    MPILauncher,  # noqa: F401 (the entry points of mm.launchers name these four)
    NoLauncher,  # noqa: F401
    PyTorchLauncher,  # noqa: F401
    SlurmLauncher,  # noqa: F401
    add_launcher_arguments,
    infer_launcher,
)
from mm_dist._local_group import get_default_group, get_local_group, init_local_group
from mm_dist._process_group import (
    check_dist_arguments,
    destroy_dist,
    enter_steady_state,
    init_dist,
)
from mm_dist._progress import mark_iteration
from mm_dist._state import DistInfo, is_distributed
from mm_dist._wrappers import (
    MMDistributedDataParallel,
    MMFullyShardedDataParallel,
    MMSeparateDistributedDataParallel,
    convert_sync_batchnorm,
    is_model_wrapper,
    revert_sync_batchnorm,
)

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


def __dir__() -> list[str]:
    return __all__
