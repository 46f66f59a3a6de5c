"""Turn the state of a sharded model or optimizer into a whole one on one rank, and back."""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from mm_dist._collectives import broadcast_object_list
from mm_dist._errors import ConfigError
from mm_dist._wrappers._sharding_materialize import broadcast_over
from mm_dist._wrappers._sharding_mesh import mesh_device

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Path = tuple[Any, ...]


def is_first_rank(mesh: "DeviceMesh") -> bool:
    """Return whether this process is the first of a mesh."""
    return all(index == 0 for index in mesh.get_coordinate() or ())


def gather_state(
    state: Mapping[str, Any], mesh: "DeviceMesh", *, cpu_offload: bool, rank0_only: bool
) -> dict[str, Any]:
    """Return a copy of a nested dict in which sharded tensors are whole.

    Every rank of the mesh must call this. One tensor at a time is whole beside the result.

    Args:
        state: The same names on all ranks.
        mesh: The ranks.
        cpu_offload: Whether tensors of the result are on the CPU.
        rank0_only: Whether ranks other than the first get an empty dict.
    """
    is_kept = not rank0_only or is_first_rank(mesh)
    gathered: dict[str, Any] = {}
    for path, value in _walk(state):
        whole = _gather(value, mesh)
        if is_kept:
            is_tensor = isinstance(whole, Tensor)
            _put(gathered, path, _snapshot(whole, cpu_offload) if is_tensor else whole)
    return gathered


def _gather(value: Any, mesh: "DeviceMesh") -> Any:
    if not _is_sharded(value):
        return value
    # An offloaded shard has to come back for the exchange.
    if value.device.type != mesh.device_type:
        value = value.to(mesh.device_type)
    return value.full_tensor()


def _snapshot(value: Tensor, cpu_offload: bool) -> Tensor:  # noqa: FBT001
    device = torch.device("cpu") if cpu_offload else value.device
    return value.detach().to(device, copy=True)


def scatter_state(
    state: Mapping[str, Any],
    template: Mapping[str, Any],
    mesh: "DeviceMesh",
    *,
    optional: tuple[str, ...] | None = (),
) -> dict[str, Any]:
    """Return the first rank's whole state, sharded as ``template`` is.

    Every rank of the mesh must call this. One tensor at a time is whole on each rank.

    Args:
        state: As ``gather_state`` returned it; only that of the first rank counts.
        template: This rank's present state, of the same structure.
        mesh: The ranks.
        optional: Keys of the outermost dict under which an entry may be missing. It then keeps its
            present value; a dict under such a key that is missing as a whole is left out. With
            ``None`` any entry may be missing or unexpected.

    Raises:
        ConfigError: On all ranks, if an entry is missing, unexpected, or of another shape.
    """
    own = dict(_walk(template))
    given = dict(_walk(state)) if is_first_rank(mesh) else {}
    plan = _share(_plan_exchange(given, own, optional) if given else None, mesh)
    if plan is None:
        raise ConfigError("The state to load is empty on the first rank; pass it there.")
    problems, present, plain, left_out = plan
    if problems:
        raise ConfigError(
            f"The state does not fit: {'; '.join(problems[:10])}"
            f"{f' and {len(problems) - 10} more' if len(problems) > 10 else ''}. Load the state of "
            "the same model, or pass strict=False where there is such an argument."
        )
    scattered: dict[str, Any] = {}
    for path, value in own.items():
        if path in plain:
            _put(scattered, path, plain[path])
        elif path in present:
            _put(scattered, path, _scatter(given.get(path), value, mesh))
        elif path not in left_out:
            _put(scattered, path, value)
    return scattered


def _plan_exchange(
    given: Mapping[Path, Any], own: Mapping[Path, Any], optional: tuple[str, ...] | None
) -> tuple[list[str], set[Path], dict[Path, Any], set[Path]]:
    """Compare the first rank's state with its present one.

    Returns:
        What does not fit; which tensors are sent; all that is small, by value; what is left out.
    """
    problems = []
    if optional is not None:
        missing = [path for path in own if path not in given and path[0] not in optional]
        problems += [f"missing: {_dotted(path)}" for path in missing]
        # An empty dict is the state of an optimizer that keeps none.
        problems += [
            f"unexpected: {_dotted(path)}"
            for path, value in given.items()
            if path not in own and not isinstance(value, Mapping)
        ]
    shared = [path for path in own if path in given]
    for path in shared:
        here, there = _shape(own[path]), _shape(given[path])
        if here != there:
            problems.append(f"{_dotted(path)}: the model has {here}, the state {there}")
    sent = {path for path in shared if isinstance(own[path], Tensor) and own[path].ndim}
    plain = {path: _copy(given[path]) for path in shared if path not in sent}
    parents = {path[:-1] for path in given}
    left_out = {path for path in own if path[0] in (optional or ()) and path[:-1] not in parents}
    return problems, sent, plain, left_out - set(plain)


def _scatter(whole: Tensor | None, like: Tensor, mesh: "DeviceMesh") -> Tensor:
    from torch.distributed.tensor import distribute_tensor  # noqa: PLC0415 (slow to import)

    device = mesh_device(mesh)
    if whole is None:
        values = torch.empty(like.shape, dtype=like.dtype, device=device)
    else:
        values = whole.detach().to(device=device, dtype=like.dtype, copy=True)
    if not _is_sharded(like):
        if values.numel():
            broadcast_over(mesh, values)
        return values.to(like.device)
    sharded: Any = like
    # The values of the first rank are what this sends; the others' only give the shape.
    return distribute_tensor(values, sharded.device_mesh, sharded.placements).to(like.device)


def _share(value: Any, mesh: "DeviceMesh") -> Any:
    """Return the first rank's object on all ranks of a mesh."""
    box = [value]
    for group in mesh.get_all_groups():
        broadcast_object_list(box, dist.get_global_rank(group, 0), group)
    return box[0]


def _walk(state: Mapping[str, Any], path: Path = ()) -> Iterator[tuple[Path, Any]]:
    for key, value in state.items():
        # Lists are settings of parameter groups: small, and taken as they are.
        if isinstance(value, Mapping) and value:
            yield from _walk(value, (*path, key))
        else:
            yield (*path, key), value


def _put(target: dict[str, Any], path: Path, value: Any) -> None:
    for key in path[:-1]:
        target = target.setdefault(key, {})
    target[path[-1]] = value


def _is_sharded(value: Any) -> bool:
    return isinstance(value, Tensor) and hasattr(value, "full_tensor")


def _shape(value: Any) -> tuple[int, ...] | None:
    return tuple(value.shape) if isinstance(value, Tensor) else None


def _copy(value: Any) -> Any:
    # An optimizer keeps the objects that it loads, and changes them.
    return value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else deepcopy(value)


def _dotted(path: Path) -> str:
    return ".".join(map(str, path))
