"""Check what ``MMDistributedDataParallel`` is given, and explain the errors of torch's reducer."""

import inspect
import re
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from mm_dist._errors import ArgumentTypeError, ConfigError, GradientSyncError, LaunchError
from mm_dist._message import suggest_name
from mm_dist._state import is_distributed
from mm_dist._wrappers._recognition import is_model_wrapper

_INDICES = re.compile(
    r"did not receive grad for rank \d+: ([\d ]+)|[Pp]arameter (?:at|with) index (\d+)"
)
_NUM_SHOWN = 20


def check_module(module: Any) -> None:
    """Check that a module has something to synchronize and is not wrapped already."""
    if not isinstance(module, nn.Module):
        raise ArgumentTypeError(f"module must be a torch.nn.Module, got {type(module)}.")
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ConfigError(
            f"{type(module).__name__} has no parameter that requires a gradient, so there is "
            "nothing to synchronize; use it without a wrapper."
        )
    if is_model_wrapper(module):
        raise ConfigError(
            f"{type(module).__name__} is a model wrapper already; use it as it is, or wrap the "
            "module in it instead."
        )


def check_group(ddp_kwargs: dict[str, Any]) -> None:
    """Check that there is a process group."""
    given = (ddp_kwargs.get("process_group"), ddp_kwargs.get("device_mesh"))
    if given == (None, None) and not is_distributed():
        raise LaunchError(
            "MMDistributedDataParallel needs a process group, and there is none; call "
            "mm_dist.init_dist first, under a launcher such as torchrun. A single process needs "
            "no wrapper."
        )


def read_ddp_arguments(module: nn.Module, ddp_kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments for torch's ``DistributedDataParallel``."""
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
    if devices == {torch.device("cpu")}:
        # torch refuses them on the CPU, though a script may pass its local rank anywhere.
        arguments.pop("device_ids", None)
        arguments.pop("output_device", None)
    elif "device_ids" not in arguments and len(devices) == 1:
        # The wrapper then moves inputs to the module's device, as it does under a launcher.
        (device,) = devices
        arguments["device_ids"] = None if device.index is None else [device.index]
    return arguments


def raise_explained(error: RuntimeError, wrapper: Any, names: Sequence[str]) -> None:
    """Raise a ``GradientSyncError`` that names the parameters of an error of torch's reducer."""
    match = _INDICES.search(str(error))
    if match is None:
        return
    indices = map(int, (match.group(1) or match.group(2)).split())
    found = tuple(names[index] for index in indices if index < len(names))
    rank, shown = dist.get_rank(), _join_names(found)
    if match.group(1) is not None:
        message = (
            f"Rank {rank}: in the last backward no gradient reached {shown}, so the gradients of "
            f"that step were not averaged over all ranks. {_find_remedy(wrapper)}"
        )
    elif "ready only once" in str(error):
        message = (
            f"Rank {rank}: the gradient of {shown} was computed more than once in one step. If a "
            "module is checkpointed, pass use_reentrant=False to torch.utils.checkpoint, or "
            "static_graph=True to the wrapper if every step has the same graph; and call the "
            "wrapper, not the module in it, before each backward."
        )
    else:
        message = (
            f"Rank {rank}: {shown} got a gradient, and did not in the first step; "
            "static_graph=True promises the same graph in each step. Use "
            "find_unused_parameters=True instead."
        )
    raise GradientSyncError(message, found) from error


def _find_remedy(wrapper: Any) -> str:
    if getattr(wrapper, "static_graph", False):
        return (
            "static_graph=True promises that each step uses the same parameters; use "
            "find_unused_parameters=True instead."
        )
    if wrapper.find_unused_parameters:
        return (
            "find_unused_parameters=True is on, so forward returned something that depends on "
            "them: let the loss use everything that forward returns, or return it detached."
        )
    return (
        "If the loss should use them, let it. Else one of: freeze them before wrapping "
        "(requires_grad=False) if they never learn; find_unused_parameters=True if which are used "
        "depends on the batch or the rank; static_graph=True if the same ones stay unused in every "
        "step, on every rank."
    )


def check_still_frozen(frozen: Sequence[tuple[str, Tensor]]) -> None:
    """Check that no parameter was unfrozen that the reducer does not average."""
    unfrozen = tuple(name for name, parameter in frozen if parameter.requires_grad)
    if unfrozen:
        raise GradientSyncError(
            f"Rank {dist.get_rank()}: {_join_names(unfrozen)} was frozen when the model was "
            "wrapped and requires gradients now, which torch's DistributedDataParallel does not "
            "average. Wrap the model while everything that is ever trained requires gradients, "
            "with find_unused_parameters=True, and freeze it afterwards, as in before_train of a "
            "hook.",
            unfrozen,
        )


def _join_names(names: Sequence[str]) -> str:
    """Return the names for a message, the first ones only if there are many."""
    shown = ", ".join(names[:_NUM_SHOWN]) or "a parameter"
    return f"{shown} and {len(names) - _NUM_SHOWN} more" if len(names) > _NUM_SHOWN else shown
