"""What a user gives to the data-parallel wrapper, as the installed torch takes it."""

import inspect
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mm_dist._backends import backends_by_device_type
from mm_dist._devices import find_accelerator_of
from mm_dist._errors import ArgumentTypeError, ConfigError, LaunchError, TorchVersionError
from mm_dist._process_group import is_distributed
from mm_dist._suggestion import suggest_name
from mm_dist._wrappers._recognition import is_model_wrapper

# Arguments that torch has added since 1.13, and a torch that has them.
_LATER_ARGUMENTS = {
    "batched_grad_copy": "2.13",
    "bucket_cap_mb_list": "2.13",
    "delay_all_reduce_named_params": "2.4",
    "device_mesh": "2.4",
    "init_sync": "2.13",
    "lazy_bucket_allocation": "2.15",
    "mixed_precision": "2.4",
    "param_to_hook_all_reduce": "2.4",
    "skip_all_reduce_unused_params": "2.13",
}


def check_module(module: Any, *, may_have_wrapped_parts: bool = False) -> None:
    """Check that there is something to synchronise, and that nothing synchronises it already.

    Raises:
        ArgumentTypeError: If it is no module.
        ConfigError: If no parameter of it is trainable, or it is wrapped already.
    """
    if not isinstance(module, nn.Module):
        raise ArgumentTypeError(f"module must be a torch.nn.Module, got {type(module)}.")
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ConfigError(
            f"{type(module).__name__} has no parameter that requires a gradient, so there is "
            "nothing to synchronise; use it without a wrapper."
        )
    if is_model_wrapper(module):
        raise ConfigError(
            f"{type(module).__name__} is a model wrapper already; use it as it is, or wrap the "
            "module in it instead."
        )
    if not may_have_wrapped_parts:
        _check_parts(module)


def _check_parts(module: nn.Module) -> None:
    """Refuse trainable parts that have a wrapper: their gradients would be reduced twice."""
    for name, part in module.named_modules():
        if is_model_wrapper(part) and any(one.requires_grad for one in part.parameters()):
            raise ConfigError(
                f"{name!r} in {type(module).__name__} is a {type(part).__name__}, which reduces "
                "the gradients of its part already; put the bare module there, or wrap each part "
                "by itself (MMSeparateDistributedDataParallel)."
            )


def check_group(module: nn.Module, ddp_kwargs: dict[str, Any]) -> None:
    """Check that there is a process group, and that it can carry the module's gradients.

    Raises:
        ConfigError: If the module is on the CPU, and the group serves accelerators only.
        LaunchError: If there is no process group.
    """
    given = ddp_kwargs.get("process_group"), ddp_kwargs.get("device_mesh")
    if given == (None, None) and not is_distributed():
        raise LaunchError(
            "MMDistributedDataParallel needs a process group, and there is none; call "
            "mm_dist.init_dist first, under a launcher such as torchrun. A single process needs "
            "no wrapper."
        )
    if given[1] is None and _device_types(module) == {"cpu"}:
        _check_backend_serves_cpu(module, given[0])


def _check_backend_serves_cpu(module: nn.Module, group: Any) -> None:
    owners = {name: find_accelerator_of(name) for name in backends_by_device_type(group).values()}
    if None in owners.values():
        return
    names = ", ".join(f"{name} ({row.name})" for name, row in owners.items() if row)
    raise ConfigError(
        f"{type(module).__name__} is on the CPU, but its process group communicates through "
        f"{names} only; move the module to this process's device first, or create the group with "
        "backend='gloo'."
    )


def check_only_hook(comm_hook: Any, ddp_kwargs: dict[str, Any]) -> None:
    """Check that nothing else wants to communicate the gradients.

    Raises:
        ConfigError: If both a hook and torch's mixed precision are asked for.
    """
    if comm_hook is not None and ddp_kwargs.get("mixed_precision") is not None:
        raise ConfigError(
            "mixed_precision= communicates through a hook of its own; leave out comm_hook, and "
            "set the reduce_dtype of mixed_precision instead."
        )


def check_guard(check_forward: Any) -> None:
    """Check which backward passes are to be watched.

    Raises:
        ArgumentTypeError: If it is neither a bool nor ``"always"``.
    """
    if not isinstance(check_forward, bool) and check_forward != "always":
        raise ArgumentTypeError(
            f"check_forward={check_forward!r} is not known; give True (some steps are watched), "
            '"always", or False.'
        )


def read_ddp_arguments(module: nn.Module, ddp_kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments for torch's ``DistributedDataParallel``; ``ddp_kwargs`` stays as it is.

    Raises:
        ArgumentTypeError: If torch knows no argument of a name.
        TorchVersionError: If only a newer torch does.
    """
    known = set(inspect.signature(DistributedDataParallel.__init__).parameters) - {"self", "module"}
    arguments = _name_buffer_argument(dict(ddp_kwargs), known)
    _check_names(arguments, known)
    _choose_device_ids(module, arguments)
    return arguments


def _name_buffer_argument(arguments: dict[str, Any], known: set[str]) -> dict[str, Any]:
    # torch 2.13 renamed it; the old name warns there, the new one is unknown before.
    names = ["broadcast_buffers", "forward_sync_buffers"]
    old, new = names if "forward_sync_buffers" in known else reversed(names)
    if old in arguments:
        value = arguments.pop(old)
        arguments.setdefault(new, value)
    return arguments


def _check_names(arguments: dict[str, Any], known: set[str]) -> None:
    for name in arguments:
        if name in known:
            continue
        if name in _LATER_ARGUMENTS:
            raise TorchVersionError(
                f"{name}= is an argument of a newer torch (torch {_LATER_ARGUMENTS[name]} has it); "
                f"this is torch {torch.__version__}. Leave it out, or upgrade torch."
            )
        raise ArgumentTypeError(
            f"MMDistributedDataParallel has no argument {name!r}; besides its own it takes those "
            f"of torch's DistributedDataParallel: {', '.join(sorted(known))}."
            f"{suggest_name(name, known)}"
        )


def _choose_device_ids(module: nn.Module, arguments: dict[str, Any]) -> None:
    devices = {parameter.device for parameter in module.parameters()}
    if _device_types(module) == {"cpu"}:
        # torch refuses them on the CPU, though a script may pass its local rank anywhere.
        arguments.pop("device_ids", None)
        arguments.pop("output_device", None)
    elif "device_ids" not in arguments and len(devices) == 1:
        # The wrapper then moves inputs to the module's device, as it does under a launcher.
        (device,) = devices
        arguments["device_ids"] = None if device.index is None else [device.index]


def _device_types(module: nn.Module) -> set[str]:
    return {parameter.device.type for parameter in module.parameters()}
