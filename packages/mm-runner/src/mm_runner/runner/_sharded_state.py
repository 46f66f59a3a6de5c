"""The state of a sharded model and its optimizer, in the form that one process would save.

A wrapper whose parameters are spread over the processes offers ``full_state_dict`` and its
counterparts (``mm_dist.MMFullyShardedDataParallel`` does); all processes call these together.
Its optimizer state goes by names of parameters, a checkpoint's by their positions, so that a file
written with either kind of wrapper starts a run with the other.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import count
from typing import TYPE_CHECKING, Any, cast

from mm_runner.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn
    from torch.optim import Optimizer

    from mm_dist import MMFullyShardedDataParallel

__all__ = ["as_sharded", "check_versions", "read_optimizer", "with_versions", "write_optimizer"]


def as_sharded(model: nn.Module) -> MMFullyShardedDataParallel | None:
    """Return ``model`` if its parameters are spread over the processes, else ``None``."""
    has_parts = hasattr(model, "full_state_dict") and hasattr(model, "load_optimizer_state_dict")
    return cast("MMFullyShardedDataParallel", model) if has_parts else None


def with_versions(state_dict: Mapping[str, Any], module: nn.Module) -> OrderedDict[str, Any]:
    """Return a state with the versions of the modules, as torch's own state_dict() has them."""
    state = OrderedDict(state_dict)
    vars(state)["_metadata"] = _versions(module)
    return state


def check_versions(state_dict: Mapping[str, Any], module: nn.Module) -> None:
    """Raise if a module is to load an older version of itself, which only a whole one does.

    Raises:
        CheckpointError: Naming the module.
    """
    own = _versions(module)
    for name, saved in getattr(state_dict, "_metadata", {}).items():
        version, needed = saved.get("version"), own.get(name, saved).get("version")
        if version != needed:
            raise CheckpointError(
                f"The checkpoint has version {version} of the module {name!r}, and the model "
                f"version {needed}. A sharded model does not convert it: resume once without "
                "sharding, and save it."
            )


def _versions(module: nn.Module) -> dict[str, dict[str, Any]]:
    return {
        f"{name}.".replace("_orig_mod.", "")[:-1]: {"version": one._version}  # noqa: SLF001
        for name, one in module.named_modules()
    }


def read_optimizer(
    model: MMFullyShardedDataParallel, optim_wrapper: Any, *, is_whole: bool
) -> dict[str, Any]:
    """Return the optimizer state, by positions. Every process must call this.

    Args:
        model: The sharded model.
        optim_wrapper: Of its optimizer.
        is_whole: Gather it on the first process; the others get only what is not the optimizer's
            own. Otherwise tensors stay spread over all.
    """
    state = {name: value for name, value in optim_wrapper.state_dict().items() if name != "state"}
    optimizer = optim_wrapper.optimizer
    named = model.optimizer_state_dict(optimizer, kind="full" if is_whole else "sharded")
    if not named:
        return state
    # Before its first step, its parts are those that it would begin with.
    groups, states = named["param_groups"], named["state"] if optimizer.state else {}
    names = [name for group in groups for name in group["params"]]
    positions = count()
    state["state"] = {index: states[name] for index, name in enumerate(names) if name in states}
    state["param_groups"] = [
        {**group, "params": [next(positions) for _ in group["params"]]} for group in groups
    ]
    return state


def write_optimizer(
    model: MMFullyShardedDataParallel, optim_wrapper: Any, saved: Mapping[str, Any]
) -> None:
    """Spread a whole optimizer state over the processes, and give the wrapper its extras.

    Every process must call this.

    Raises:
        CheckpointError: If the state is of another number of parameters.
    """
    optimizer = optim_wrapper.optimizer
    names = _names_by_group(model.module, optimizer)
    sizes = [len(group["params"]) for group in saved["param_groups"]]
    if sizes != [len(group) for group in names]:
        raise CheckpointError(
            f"The checkpoint's optimizer has parameter groups of {sizes} parameters, this run's of "
            f"{[len(group) for group in names]}. Build the same optimizer, or start with "
            "load_from and resume=False, which takes the weights alone."
        )
    by_position = dict(enumerate(name for group in names for name in group))
    model.load_optimizer_state_dict(
        optimizer,
        {
            "state": {by_position[index]: value for index, value in saved["state"].items()},
            "param_groups": [
                {**group, "params": own}
                for group, own in zip(saved["param_groups"], names, strict=True)
            ],
        },
    )
    # The rest of the wrapper's state, such as its loss scale, around what is loaded already.
    optim_wrapper.load_state_dict({**saved, **optimizer.state_dict()})


def _names_by_group(module: nn.Module, optimizer: Optimizer) -> list[list[str]]:
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    return [
        [names[id(parameter)].replace("_orig_mod.", "") for parameter in group["params"]]
        for group in optimizer.param_groups
    ]
