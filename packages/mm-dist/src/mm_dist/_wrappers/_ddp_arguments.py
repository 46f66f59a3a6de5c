"""Check the arguments of ``MMDistributedDataParallel`` and translate them for this torch."""

import inspect
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mm_dist._backends import backends_by_device_type
from mm_dist._devices import find_accelerator_of
from mm_dist._errors import ArgumentTypeError, ConfigError, LaunchError
from mm_dist._process_group import is_distributed
from mm_dist._suggestion import suggest_name
from mm_dist._wrappers._recognition import is_model_wrapper


def check_module(module: Any, *, may_have_wrapped_parts: bool = False) -> None:
    """Check that a module has something to synchronise and is not wrapped already.

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
    for name, part in module.named_modules() if not may_have_wrapped_parts else ():
        if is_model_wrapper(part) and any(one.requires_grad for one in part.parameters()):
            raise ConfigError(
                f"{name!r} in {type(module).__name__} is a {type(part).__name__}, which reduces "
                "the gradients of its part already; put the bare module there, or wrap each part "
                "by itself with MMSeparateDistributedDataParallel."
            )


def check_group(module: nn.Module, ddp_kwargs: dict[str, Any]) -> None:
    """Check that there is a process group, and that it can carry the module's gradients.

    Raises:
        ConfigError: If the module is on the CPU, and the group serves accelerators only.
        LaunchError: If there is no process group.
    """
    group, mesh = ddp_kwargs.get("process_group"), ddp_kwargs.get("device_mesh")
    if group is None and mesh is None and not is_distributed():
        raise LaunchError(
            "MMDistributedDataParallel needs a process group, and there is none; call "
            "mm_dist.init_dist first, under a launcher such as torchrun. A single process needs "
            "no wrapper."
        )
    if mesh is not None or _device_types(module) != {"cpu"}:
        return
    owners = {name: find_accelerator_of(name) for name in backends_by_device_type(group).values()}
    if None not in owners.values():
        names = ", ".join(f"{name} ({row.name})" for name, row in owners.items() if row)
        raise ConfigError(
            f"{type(module).__name__} is on the CPU, but its process group communicates through "
            f"{names} only; move the module to this process's device first, or create the group "
            "with backend='gloo'."
        )


def read_ddp_arguments(module: nn.Module, ddp_kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments for torch's ``DistributedDataParallel``; ``ddp_kwargs`` stays as it is.

    Raises:
        ArgumentTypeError: If this torch knows no argument of a name.
    """
    known = set(inspect.signature(DistributedDataParallel.__init__).parameters) - {"self", "module"}
    arguments = dict(ddp_kwargs)
    # torch 2.13 renamed it; the old name warns there, the new one is unknown before.
    names = ["broadcast_buffers", "forward_sync_buffers"]
    old, new = names if "forward_sync_buffers" in known else reversed(names)
    if old in arguments:
        arguments.setdefault(new, arguments.pop(old))
    for name in arguments:
        if name not in known:
            raise ArgumentTypeError(
                f"MMDistributedDataParallel has no argument {name!r} with torch "
                f"{torch.__version__}; besides its own it takes those of torch's "
                f"DistributedDataParallel: {', '.join(sorted(known))}.{suggest_name(name, known)}"
            )
    devices = {parameter.device for parameter in module.parameters()}
    if _device_types(module) == {"cpu"}:
        # torch refuses them on the CPU, though a script may pass its local rank anywhere.
        arguments.pop("device_ids", None)
        arguments.pop("output_device", None)
    elif "device_ids" not in arguments and len(devices) == 1:
        # The wrapper then moves inputs to the module's device, as it does under a launcher.
        (device,) = devices
        arguments["device_ids"] = None if device.index is None else [device.index]
    return arguments


def _device_types(module: nn.Module) -> set[str]:
    return {parameter.device.type for parameter in module.parameters()}
