"""The state of a sharded model and its optimizer: whole on one rank, or a part on each rank."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import distribute_tensor
from torch.optim import Optimizer

from mm_dist._collectives import broadcast_object_list
from mm_dist._errors import ConfigError
from mm_dist._wrappers._sharding_mesh import broadcast_over, is_first_rank, mesh_device

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_Path = tuple[Any, ...]


def read_full(
    module: nn.Module, mesh: "DeviceMesh", *, cpu_offload: bool, rank0_only: bool
) -> dict[str, Any]:
    """Return the whole state of a model."""
    state = get_model_state_dict(module)
    return _gather_state(state, mesh, cpu_offload=cpu_offload, rank0_only=rank0_only)


def load_full(
    module: nn.Module, mesh: "DeviceMesh", state: Mapping[str, Any], *, strict: bool
) -> None:
    """Load the first rank's whole state of a model."""
    own = get_model_state_dict(module)
    scattered = _scatter_state(state, own, mesh, may_lack=not strict, may_exceed=not strict)
    load_sharded(module, scattered, strict=strict)


def load_sharded(module: nn.Module, state: Mapping[str, Any], *, strict: bool) -> None:
    """Load this rank's part of a model's state."""
    set_model_state_dict(module, dict(state), options=StateDictOptions(strict=strict))


def read_optimizer(
    module: nn.Module, mesh: "DeviceMesh", optimizer: Optimizer, kind: str
) -> dict[str, Any]:
    """Return the state of an optimizer, by names of parameters."""
    _check_kind(kind)
    if optimizer.state:
        state = get_optimizer_state_dict(module, optimizer)
    else:
        state = _read_initial(module, optimizer)
    if kind == "sharded":
        return state
    if not optimizer.state:
        state["state"] = {}
    return _gather_state(state, mesh, cpu_offload=True, rank0_only=True)


def load_optimizer(
    module: nn.Module,
    mesh: "DeviceMesh",
    optimizer: Optimizer,
    state: Mapping[str, Any],
    kind: str,
) -> None:
    """Load the state of an optimizer."""
    _check_kind(kind)
    if kind == "full":
        template = _read_initial(module, optimizer)
        # A parameter that no gradient has reached has no state.
        scattered = _scatter_state(state, template, mesh, may_lack=True, may_exceed=False)
        state = {"state": {}, **scattered}
    options = StateDictOptions(strict=False)
    set_optimizer_state_dict(module, optimizer, dict(state), options=options)


def _check_kind(kind: str) -> None:
    if kind not in ("full", "sharded"):
        raise ConfigError(f"kind={kind!r} is not known; use 'full' or 'sharded'.")


def _read_initial(module: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Return the state that the optimizer began with; its present one is untouched."""
    # torch finds it by a step with the learning rate 0, if there are no gradients.
    with _set_aside(optimizer):
        state: dict[str, Any] = get_optimizer_state_dict(module, optimizer)
    for values in state["state"].values():
        if "step" in values:
            values["step"] = values["step"] * 0
    return state


@contextmanager
def _set_aside(optimizer: Optimizer) -> Iterator[None]:
    """Clear an optimizer's state and gradients; restore them at the end."""
    state = dict(optimizer.state)
    gradients = [(p, p.grad) for group in optimizer.param_groups for p in group["params"]]
    optimizer.state.clear()
    for parameter, _ in gradients:
        parameter.grad = None
    try:
        yield
    finally:
        optimizer.state.clear()
        optimizer.state.update(state)
        for parameter, gradient in gradients:
            parameter.grad = gradient


def _gather_state(
    state: Mapping[str, Any], mesh: "DeviceMesh", *, cpu_offload: bool, rank0_only: bool
) -> dict[str, Any]:
    """Return a copy of a nested dict in which sharded tensors are whole.

    Every rank of the mesh must call this. One tensor at a time is whole beside the result.
    """
    is_kept = not rank0_only or is_first_rank(mesh)
    gathered: dict[str, Any] = {}
    for path, value in _walk(state):
        whole = value
        if hasattr(value, "full_tensor"):
            # An offloaded shard has to come back for the exchange.
            whole = value.to(mesh.device_type).full_tensor()
        if is_kept:
            if isinstance(whole, Tensor):
                device = torch.device("cpu") if cpu_offload else whole.device
                whole = whole.detach().to(device, copy=True)
            _put(gathered, path, whole)
    return gathered


def _scatter_state(
    state: Mapping[str, Any],
    template: Mapping[str, Any],
    mesh: "DeviceMesh",
    *,
    may_lack: bool,
    may_exceed: bool,
) -> dict[str, Any]:
    """Return the first rank's whole state, sharded as ``template`` is.

    Every rank of the mesh must call this. One tensor at a time is whole on each rank.

    Args:
        state: As ``_gather_state`` returned it; only that of the first rank counts.
        template: This rank's present state, of the same structure.
        mesh: The ranks.
        may_lack: Whether entries of ``template`` may be missing; they are left out.
        may_exceed: Whether there may be other entries; they are ignored.

    Raises:
        ConfigError: On all ranks, if an entry is missing, unexpected, or of another shape.
    """
    own = dict(_walk(template))
    given = dict(_walk(state)) if is_first_rank(mesh) else {}
    # Large tensors are announced by their shape, the rest travels at once.
    plan = _share({path: _announce(value) for path, value in given.items()}, mesh)
    if not plan:
        raise ConfigError("The state to load is empty on the first rank; pass it there.")
    problems = [] if may_lack else [f"missing: {_dotted(path)}" for path in own if path not in plan]
    if not may_exceed:
        unknown = [path for path in plan if path not in own and plan[path] != {}]
        problems += [f"unexpected: {_dotted(path)}" for path in unknown]
    for path, value in own.items():
        here, there = _shape(value), _shape(plan.get(path))
        if path in plan and here != there:
            problems.append(f"{_dotted(path)}: the model has {here}, the state {there}")
    if problems:
        more = f" and {len(problems) - 10} more" if len(problems) > 10 else ""
        raise ConfigError(
            f"The state does not fit: {'; '.join(problems[:10])}{more}. Load the state of the same "
            "model, or pass strict=False where there is such an argument."
        )
    scattered: dict[str, Any] = {}
    for path, value in own.items():
        if path in plan:
            is_large = _is_large(plan[path])
            entry = _scatter(given.get(path), value, mesh) if is_large else plan[path]
            _put(scattered, path, entry)
    return scattered


def _share(value: Any, mesh: "DeviceMesh") -> Any:
    """Broadcast the first rank's object over a mesh."""
    box = [value]
    for group in mesh.get_all_groups():
        broadcast_object_list(box, dist.get_global_rank(group, 0), group)
    return box[0]


def _announce(value: Any) -> Any:
    """Copy a small value; replace a larger tensor by one on the meta device."""
    if not isinstance(value, Tensor):
        return deepcopy(value)
    return value.detach().to("meta" if value.ndim else "cpu", copy=True)


def _scatter(whole: Tensor | None, like: Any, mesh: "DeviceMesh") -> Tensor:
    device = mesh_device(mesh)
    if whole is None:
        values = torch.empty(like.shape, dtype=like.dtype, device=device)
    else:
        values = whole.detach().to(device=device, dtype=like.dtype, copy=True)
    if not hasattr(like, "full_tensor"):
        broadcast_over(mesh, values)
        return values.to(like.device)
    # The values of the first rank are what this sends; the others' only give the shape.
    return distribute_tensor(values, like.device_mesh, like.placements).to(like.device)


def _walk(state: Mapping[str, Any], path: _Path = ()) -> Iterator[tuple[_Path, Any]]:
    for key, value in state.items():
        # Lists are settings of parameter groups: small, and taken as they are.
        if isinstance(value, Mapping) and value:
            yield from _walk(value, (*path, key))
        else:
            yield (*path, key), value


def _put(target: dict[str, Any], path: _Path, value: Any) -> None:
    for key in path[:-1]:
        target = target.setdefault(key, {})
    target[path[-1]] = value


def _is_large(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(value.shape) if isinstance(value, Tensor) else ()


def _dotted(path: _Path) -> str:
    return ".".join(map(str, path))
