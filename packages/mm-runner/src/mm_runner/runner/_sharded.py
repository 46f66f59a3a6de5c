"""Read and restore the weights and the optimizer of a plain or sharded model.

A wrapper whose parameters are spread over the processes offers ``full_state_dict`` and its
counterparts (``mm_dist.MMFullyShardedDataParallel`` does); all processes call these together.
Its optimizer state goes by names of parameters, a checkpoint's by their positions, so that a file
written with either kind of wrapper starts a run with the other.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, cast

import torch

from mm_runner.checkpoint import (
    load_weights,
    read_shards,
    renamed,
)
from mm_runner.checkpoint._content import describe_misfits, fitting
from mm_runner.errors import CheckpointError
from mm_runner.model import unwrap_model

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import nn

    from mm_dist import MMFullyShardedDataParallel

    from ._runner import Runner


def as_sharded(model: nn.Module) -> MMFullyShardedDataParallel | None:
    """Return ``model`` if its parameters are spread over the processes, else ``None``."""
    has_parts = hasattr(model, "full_state_dict") and hasattr(model, "load_optimizer_state_dict")
    return cast("MMFullyShardedDataParallel", model) if has_parts else None


def data_place(runner: Runner) -> tuple[int, int]:
    """Return this process's number among those that see different data, and how many they are."""
    model: Any = runner.model
    rank = getattr(model, "data_rank", runner.rank)
    return rank, getattr(model, "num_data_ranks", runner.world_size)


def read_weights(model: nn.Module, *, is_whole: bool) -> dict[str, Any]:
    """Return the weights, by the names of the bare model. Every process must call this.

    With ``is_whole`` those of a sharded model are gathered on the first process.
    """
    sharded, weights = as_sharded(model), unwrap_model(model).state_dict()
    if sharded is not None:
        spread = sharded.full_state_dict() if is_whole else sharded.sharded_state_dict()
        for name in [*weights]:
            del weights[name]  # its metadata stays
        weights.update(spread)
    # Not "module.", which is an attribute of the model here.
    return renamed(weights, lambda name: name.replace("_orig_mod.", ""))


def restore_weights(runner: Runner, weights: Mapping[str, Any], *, strict: bool) -> None:
    """Load a state dict into the model. Every process must call this.

    Raises:
        CheckpointError: If nothing fits the model, or when ``strict``, not everything does.
    """
    sharded, bare = as_sharded(runner.model), unwrap_model(runner.model)
    own = renamed(bare.state_dict(), lambda name: name.replace("_orig_mod.", ""))
    if sharded is None:
        problems = load_weights(bare, weights, strict=strict)
    else:
        weights, problems = (weights, []) if strict else fitting(own, weights)
        _load_sharded(sharded, own, weights, strict=strict)
    if problems:
        runner.logger.warning(describe_misfits(problems, "load_from", len(own)))


def _load_sharded(
    sharded: MMFullyShardedDataParallel,
    own: Mapping[str, Any],
    weights: Mapping[str, Any],
    *,
    strict: bool,
) -> None:
    # torch's sharded loading does not call _load_from_state_dict, which converts older versions.
    versions = vars(own)["_metadata"]
    for name, saved in getattr(weights, "_metadata", {}).items():
        version, needed = saved.get("version"), versions.get(name, saved).get("version")
        if version != needed:
            raise CheckpointError(
                f"The checkpoint has version {version} of the module {name!r}, and the model "
                f"version {needed}. A sharded model does not convert it: resume once without "
                "sharding, and save it."
            )
    if _is_spread(weights):
        sharded.load_sharded_state_dict(weights, strict=strict)
    else:
        sharded.load_full_state_dict(weights, strict=strict)


def read_optimizer(model: nn.Module, optim_wrapper: Any, *, is_whole: bool) -> dict[str, Any]:
    """Return the optimizer state, by positions. Every process must call this.

    With ``is_whole`` that of a sharded model is gathered on the first process, and the others get
    only the state of the wrapper.
    """
    state: dict[str, Any] = optim_wrapper.state_dict()
    sharded = as_sharded(model)
    if sharded is None:
        return state
    state = {name: value for name, value in state.items() if name != "state"}
    optimizer = optim_wrapper.optimizer
    named = sharded.optimizer_state_dict(optimizer, kind="full" if is_whole else "sharded")
    if not named:
        return state
    groups, states = named["param_groups"], named["state"]
    names = [name for group in groups for name in group["params"]]
    positions = count()
    state["state"] = {index: states[name] for index, name in enumerate(names) if name in states}
    state["param_groups"] = [
        {**group, "params": [next(positions) for _ in group["params"]]} for group in groups
    ]
    return state


def write_optimizer(model: nn.Module, optim_wrapper: Any, saved: Mapping[str, Any]) -> None:
    """Load the state of optimizer and wrapper. Every process must call this."""
    sharded = as_sharded(model)
    if sharded is None:
        optim_wrapper.load_state_dict(saved)
        return
    optimizer = optim_wrapper.optimizer
    own = {id(one): name for name, one in sharded.module.named_parameters()}
    names = [
        own[id(one)].replace("_orig_mod.", "")
        for group in optimizer.param_groups
        for one in group["params"]
    ]
    named = {
        "state": {names[index]: value for index, value in saved["state"].items()},
        "param_groups": [
            {**group, "params": [names[index] for index in group["params"]]}
            for group in saved["param_groups"]
        ],
    }
    is_spread = any(_is_spread(state) for state in saved["state"].values())
    sharded.load_optimizer_state_dict(optimizer, named, kind="sharded" if is_spread else "full")
    # The wrapper's own state, such as its loss scale; the optimizer's is loaded already.
    optim_wrapper.load_state_dict({**saved, **optimizer.state_dict()})


def read_own_shards(
    model: MMFullyShardedDataParallel, checkpoint: dict[str, Any], path: Path
) -> None:
    """Put this process's shards of the tensors in the checkpoint's folder into ``checkpoint``."""
    prefix = getattr(model.module, "weights_prefix", "")
    named = {
        name.replace("_orig_mod.", "").removeprefix(prefix): one.detach()
        for name, one in model.module.named_parameters()
        if hasattr(one, "placements")
    }
    # The moments of a parameter have its shape, and mostly its layout.
    alike = {one.shape: one for one in named.values()}

    def empty(key: str, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        name = key.partition(".")[2]
        # The averages' own weights, and averages, have the name of the parameter behind a word.
        names = (
            name,
            f"{prefix}{name}",
            *(name.removeprefix(one) for one in ("module.", "average.")),
        )
        like = next((named[one] for one in names if one in named), None)
        like = alike.get(shape) if like is None or like.shape != shape else like
        if like is None:
            return torch.empty(shape, dtype=dtype)
        return torch.empty_like(like, dtype=dtype)

    read_shards(checkpoint, path, empty)


def _is_spread(tensors: Mapping[str, Any]) -> bool:
    return any(hasattr(one, "full_tensor") for one in tensors.values())
