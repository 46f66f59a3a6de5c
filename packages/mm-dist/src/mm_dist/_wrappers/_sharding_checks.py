"""What must hold before a module is sharded."""

import warnings
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from mm_dist._errors import ArgumentTypeError, ConfigError, LaunchError, TorchVersionError
from mm_dist._info import is_main_process
from mm_dist._process_group import is_distributed

_NAME = "MMFullyShardedDataParallel"
_SINCE = (2, 6)
# Before, gloo adds gradients up where it is asked for their average, and says nothing.
_ON_CPU_SINCE = (2, 8)
_JOINT_CASTS_SINCE = (2, 13)


def load_fsdp() -> ModuleType:
    """Import ``torch.distributed.fsdp``, which takes long, if it has what is needed.

    Raises:
        TorchVersionError: If this torch is too old.
        LaunchError: If there is no process group.
    """
    if _torch_version() < _SINCE:
        raise TorchVersionError(
            f"{_NAME} builds on torch.distributed.fsdp.fully_shard, which torch has since 2.6; "
            f"this is {torch.__version__}. Upgrade torch, or use MMDistributedDataParallel."
        )
    if not is_distributed():
        raise LaunchError(
            f"{_NAME} needs a process group, and there is none; call mm_dist.init_dist first, "
            "under a launcher such as torchrun. A single process needs no wrapper."
        )
    return import_module("torch.distributed.fsdp")


def check_device_type(device_type: str) -> None:
    """Check that this torch shards modules on such a device.

    Raises:
        TorchVersionError: If it does not.
    """
    if device_type == "cpu" and _torch_version() < _ON_CPU_SINCE:
        raise TorchVersionError(
            f"{_NAME} on the CPU needs torch 2.8 or newer, whose fully_shard can average "
            f"gradients there; this is {torch.__version__}. Upgrade torch, use an accelerator, or "
            "use MMDistributedDataParallel."
        )


def has_joint_casts() -> bool:
    """Return whether each of the modules of one group gets its inputs and outputs cast.

    That is known of torch 2.13, and known not to be so of 2.8.
    """
    return _torch_version() >= _JOINT_CASTS_SINCE


def _torch_version() -> tuple[int, int]:
    major, minor = str(torch.__version__).split(".")[:2]
    return int(major), int(minor)


def check_module(module: Any) -> None:
    """Check that a module can be sharded.

    Raises:
        ArgumentTypeError: If it is no module.
        ConfigError: If it has no parameters, or is wrapped or sharded already, in part or whole.
    """
    if not isinstance(module, nn.Module):
        raise ArgumentTypeError(f"module must be a torch.nn.Module, got {type(module)}.")
    if not any(True for _ in module.parameters()):
        raise ConfigError(
            f"{type(module).__name__} has no parameters, so there is nothing to shard; use it "
            "without a wrapper."
        )
    for name, part in module.named_modules():
        # Both of torch's generations of sharded modules have the method.
        is_sharded = hasattr(part, "set_requires_gradient_sync") or hasattr(part, "no_sync")
        if is_sharded or isinstance(part, (DistributedDataParallel, nn.DataParallel)):
            place = f"{name!r} in it, a {type(part).__name__}," if name else type(part).__name__
            raise ConfigError(
                f"{place} is wrapped or sharded already; give {_NAME} the bare model."
            )
    for name, parameter in module.named_parameters():
        if is_lazy(parameter):
            raise ConfigError(
                f"The parameter {name!r} has no shape yet; run the model once before it is sharded."
            )


def check_shapes(module: nn.Module, ignored: set[nn.Parameter]) -> None:
    """Check that every parameter has a dimension to shard.

    Raises:
        ConfigError: If one has none.
    """
    scalars = [n for n, p in module.named_parameters() if p.ndim == 0 and p not in ignored]
    if scalars:
        raise ConfigError(
            f"Parameters without dimensions cannot be sharded: {', '.join(scalars)}. Give them "
            "the shape (1,), or keep them whole by ignored_parameters."
        )


def warn_of_former_arguments(given: Mapping[str, Any]) -> None:
    """Say which of the arguments of torch's first wrapper have no meaning for ``fully_shard``.

    Args:
        given: ``backward_prefetch``, ``forward_prefetch``, ``limit_all_gathers`` and
            ``use_orig_params``.
    """
    prefetch = given["backward_prefetch"]
    prefetch_name = prefetch if isinstance(prefetch, str) else getattr(prefetch, "name", prefetch)
    notes = []
    if prefetch_name not in (None, "BACKWARD_PRE"):
        notes.append("backward_prefetch: the next group is always fetched before it is needed")
    if given["forward_prefetch"]:
        notes.append(
            "forward_prefetch: see set_modules_to_forward_prefetch of the modules in .module"
        )
    if not given["limit_all_gathers"]:
        notes.append("limit_all_gathers=False: memory is always bounded")
    if not given["use_orig_params"]:
        notes.append("use_orig_params=False: parameters are never flattened")
    if notes and is_main_process():
        warnings.warn(
            f"{_NAME} was given what fully_shard does not have, and goes on without. "
            f"{'; '.join(notes)}. Leave it out.",
            stacklevel=4,
        )


def check_device_id(device_id: Any, device: torch.device) -> None:
    """Check that ``device_id`` names the device that this process uses anyway.

    Raises:
        ConfigError: If it names another one.
    """
    if device_id is None:
        return
    index = device_id if isinstance(device_id, int) else torch.device(device_id).index
    kind = device.type if isinstance(device_id, int) else torch.device(device_id).type
    if kind != device.type or (index is not None and index != (device.index or 0)):
        raise ConfigError(
            f"device_id={device_id!r} was given, and the current device of this process is "
            f"{device}; leave device_id out, or make it the current device first."
        )


def check_optimizer(wrapper: nn.Module, optim_wrapper: Any) -> None:
    """Check that an optimizer was built after the sharding, which made new parameters.

    Args:
        wrapper: The wrapper of the sharded model.
        optim_wrapper: What has ``param_groups``: a list, or lists by the name of an optimizer.

    Raises:
        ConfigError: If it was built before.
    """
    if not any(_is_sharded(one) and one.requires_grad for one in wrapper.parameters()):
        return  # whole ones are as they were
    groups = getattr(optim_wrapper, "param_groups", [])
    if isinstance(groups, Mapping):
        groups = [group for named in groups.values() for group in named]
    parameters = [parameter for group in groups for parameter in group["params"]]
    if parameters and not any(map(_is_sharded, parameters)):
        raise ConfigError(
            "The optimizer holds parameters from before the model was sharded, so that its "
            "steps would change nothing; build it from the parameters of "
            f"{type(wrapper).__name__}."
        )


def _is_sharded(parameter: Any) -> bool:
    return hasattr(parameter, "placements")
