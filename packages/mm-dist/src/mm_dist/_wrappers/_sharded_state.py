"""The state of a sharded model and its optimizer: whole on one rank, or a part on each rank."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.tensor import Replicate
from torch.optim import Optimizer

from mm_dist._collectives._objects import broadcast_object_list
from mm_dist._errors import ConfigError
from mm_dist._wrappers._sharding import broadcast_over, mesh_device

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def read_model(module: nn.Module, mesh: "DeviceMesh") -> dict[str, Any]:
    """Return the whole state of a model on the first rank, an empty dict elsewhere."""
    return _gather(get_model_state_dict(module), mesh)


def load_model(
    module: nn.Module, mesh: "DeviceMesh", state: Mapping[str, Any], *, strict: bool
) -> None:
    """Load the first rank's whole state of a model."""
    own = get_model_state_dict(module)
    plan = _share(state, mesh)
    problems = [f"missing: {name}" for name in own if strict and name not in plan]
    problems += [f"unexpected: {name}" for name in plan if strict and name not in own]
    problems += [
        f"{name}: the model has {_shape(value)}, the state {_shape(plan[name])}"
        for name, value in own.items()
        if name in plan and _shape(plan[name]) != _shape(value)
    ]
    if problems:
        more = f" and {len(problems) - 10} more" if len(problems) > 10 else ""
        raise ConfigError(
            f"The state does not fit: {'; '.join(problems[:10])}{more}. Load the state of the same "
            "model, or pass strict=False."
        )
    loaded = {
        name: _scatter(state.get(name), plan[name], value, mesh)
        for name, value in own.items()
        if name in plan
    }
    set_model_state_dict(module, loaded, options=StateDictOptions(strict=strict))


def read_optimizer(
    module: nn.Module, mesh: "DeviceMesh", optimizer: Optimizer, kind: str
) -> dict[str, Any]:
    """Return the state of an optimizer, by names of parameters."""
    groups = _names_by_group(module, optimizer)
    names = [name for group in groups for name in group]
    saved = optimizer.state_dict()
    state = {names[index]: values for index, values in saved["state"].items()}
    named = [
        {**group, "params": own} for group, own in zip(saved["param_groups"], groups, strict=True)
    ]
    if _is_full(kind):
        state = {name: _gather(values, mesh) for name, values in state.items()}
        if not _is_first_rank(mesh):
            return {}
    return {"state": state, "param_groups": named}


def load_optimizer(
    module: nn.Module,
    mesh: "DeviceMesh",
    optimizer: Optimizer,
    state: Mapping[str, Any],
    kind: str,
) -> None:
    """Load the state of an optimizer, by names of parameters."""
    own = _names_by_group(module, optimizer)
    groups, states = state.get("param_groups", []), state.get("state", {})
    is_full, plan = _is_full(kind), states
    if is_full:
        groups = _broadcast(groups, mesh)
        plan = {name: _share(states.get(name, {}), mesh) for name in _broadcast(list(states), mesh)}
    saved = [group["params"] for group in groups]
    if saved != own:
        raise ConfigError(
            f"The state does not fit: its parameter groups hold {saved}, the optimizer's {own}. "
            "Load the state of the same optimizer."
        )
    parameters = {_plain_name(name): one for name, one in module.named_parameters()}

    def place(name: str, key: str, value: Any) -> Any:
        if is_full:
            value = _scatter(states.get(name, {}).get(key), value, parameters[name], mesh)
        return _lay_out(value, parameters[name])

    names = [name for group in own for name in group]
    positions = {name: index for index, name in enumerate(names)}
    optimizer.load_state_dict(
        {
            "state": {
                positions[name]: {key: place(name, key, value) for key, value in values.items()}
                for name, values in plan.items()
            },
            "param_groups": [
                {**group, "params": [positions[name] for name in group["params"]]}
                for group in groups
            ],
        }
    )


def _is_full(kind: str) -> bool:
    if kind not in ("full", "sharded"):
        raise ConfigError(f"kind={kind!r} is not known; use 'full' or 'sharded'.")
    return kind == "full"


def _names_by_group(module: nn.Module, optimizer: Optimizer) -> list[list[str]]:
    names = {parameter: _plain_name(name) for name, parameter in module.named_parameters()}
    try:
        return [[names[one] for one in group["params"]] for group in optimizer.param_groups]
    except KeyError as error:
        raise ConfigError(
            "The optimizer holds a parameter that the sharded model has not; build it from the "
            "parameters of the wrapper."
        ) from error


def _plain_name(name: str) -> str:
    return name.replace("_orig_mod.", "")


def _gather(values: Mapping[str, Any], mesh: "DeviceMesh") -> dict[str, Any]:
    """Return a copy on the first rank's CPU in which sharded tensors are whole, one at a time."""
    gathered = {}
    for name, value in values.items():
        whole = value
        if hasattr(value, "full_tensor"):
            # An offloaded shard has to come back for the exchange.
            whole = _join(value.to(mesh.device_type))
        if _is_first_rank(mesh):
            is_tensor = isinstance(whole, Tensor)
            gathered[name] = whole.detach().to("cpu", copy=True) if is_tensor else whole
    return gathered


def _share(values: Mapping[str, Any], mesh: "DeviceMesh") -> dict[str, Any]:
    """Return the first rank's values on all ranks, larger tensors on the meta device."""
    plan = {
        name: value.detach().to("meta" if value.ndim else "cpu", copy=True)
        if isinstance(value, Tensor)
        else value
        for name, value in values.items()
    }
    return dict(_broadcast(plan, mesh))


def _broadcast(value: Any, mesh: "DeviceMesh") -> Any:
    box = [value]
    for group in mesh.get_all_groups():
        broadcast_object_list(box, dist.get_global_rank(group, 0), group)
    return box[0]


def _scatter(whole: Any, planned: Any, like: Any, mesh: "DeviceMesh") -> Any:
    """Return the first rank's value, sharded as ``like`` is where it has the same shape."""
    if not isinstance(planned, Tensor) or planned.ndim == 0:
        return planned
    values = torch.empty(planned.shape, dtype=planned.dtype, device=mesh_device(mesh))
    if _is_first_rank(mesh):
        values.copy_(whole)
    broadcast_over(mesh, values)
    is_sharded = hasattr(like, "placements") and like.shape == values.shape
    return _cut(values, like) if is_sharded else values.to(like.device)


def _join(spread: Any) -> Any:
    """Return the whole of a sharded tensor, on all ranks."""
    placements = list(spread.placements)
    for dim in range(len(placements) - 1):  # torch warns of several dimensions at once
        placements[dim] = Replicate()
        spread = spread.redistribute(placements=placements)
    return spread.full_tensor()


def _cut(whole: Tensor, like: Any) -> Any:
    """Return a tensor that every rank has, sharded as ``like`` is."""
    part = whole
    # Data ranks share out what tensor ranks have split.
    for dim, placement in reversed(list(enumerate(like.placements))):
        if not placement.is_replicate():
            index, size = like.device_mesh.get_local_rank(dim), like.device_mesh.size(dim)
            parts = part.chunk(size, placement.dim)
            part = parts[index] if index < len(parts) else part.narrow(placement.dim, 0, 0)
    options = {"shape": like.shape, "stride": like.stride(), "run_check": False}
    part = part.contiguous().to(like.device, copy=True)
    return like.from_local(part, like.device_mesh, like.placements, **options)


def _lay_out(value: Any, like: Any) -> Any:
    """Return a sharded tensor in the layout of the parameter that it belongs to."""
    is_alike = getattr(value, "shape", None) == like.shape and hasattr(value, "full_tensor")
    if not is_alike or (value.device_mesh, value.placements) == (like.device_mesh, like.placements):
        return value
    return _cut(_join(value.to(like.device_mesh.device_type)), like)


def _is_first_rank(mesh: "DeviceMesh") -> bool:
    return all(index == 0 for index in mesh.get_coordinate() or ())


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(value.shape) if isinstance(value, Tensor) else ()
