"""Launchers, process groups, collectives and model wrappers for distributed PyTorch."""

from importlib.metadata import version

from mm_dist._arguments import add_launcher_arguments
from mm_dist._collectives import (
    all_gather,
    all_gather_object,
    all_reduce,
    all_reduce_dict,
    broadcast,
    broadcast_object_list,
    collect_results,
    gather,
    gather_object,
    sync_random_seed,
)
from mm_dist._device_choice import available_device_type, local_device
from mm_dist._dist_info import DistInfo
from mm_dist._errors import (
    ArgumentTypeError,
    ConfigError,
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
    infer_launcher,
    is_main_process,
    master_only,
)
from mm_dist._launchers import (
    LaunchEnvironment,
    Launcher,
    MPILauncher,
    NoLauncher,
    PyTorchLauncher,
    SlurmLauncher,
)
from mm_dist._process_group import destroy_dist, init_dist, is_distributed
from mm_dist._wrappers import MMDistributedDataParallel, is_model_wrapper

__all__ = [
    "ArgumentTypeError",
    "ConfigError",
    "DistInfo",
    "LaunchEnvironment",
    "LaunchError",
    "Launcher",
    "MMDistError",
    "MMDistributedDataParallel",
    "MPILauncher",
    "NoLauncher",
    "PyTorchLauncher",
    "SlurmLauncher",
    "TorchVersionError",
    "add_launcher_arguments",
    "all_gather",
    "all_gather_object",
    "all_reduce",
    "all_reduce_dict",
    "available_device_type",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "collect_results",
    "destroy_dist",
    "gather",
    "gather_object",
    "get_backend",
    "get_dist_info",
    "get_local_rank",
    "get_local_size",
    "get_rank",
    "get_world_size",
    "infer_launcher",
    "init_dist",
    "is_distributed",
    "is_main_process",
    "is_model_wrapper",
    "local_device",
    "master_only",
    "sync_random_seed",
]
__version__ = version("mm-dist")


def __dir__() -> list[str]:
    return __all__
