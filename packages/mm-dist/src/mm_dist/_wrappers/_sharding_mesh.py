"""The grid of ranks that parameters are sharded over."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from mm_dist._backends import backends_by_device_type
from mm_dist._collectives import all_gather_object
from mm_dist._device_choice import current_device
from mm_dist._errors import ConfigError
from mm_dist._process_group import current_info
from mm_dist._wrappers._sharding_strategy import FULL, HYBRID, Strategy

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_DIMENSIONS = ("replicate", "shard")


def choose_device_type(module: nn.Module, device_mesh: Any) -> str:
    """Return the type of the devices that the sharded module will be on.

    A module on the CPU or on the meta device goes to the device of this process.

    Raises:
        ConfigError: If the module is on several types of accelerator.
    """
    if hasattr(device_mesh, "device_type"):
        return str(device_mesh.device_type)
    types = {parameter.device.type for parameter in module.parameters()} - {"cpu", "meta"}
    if len(types) > 1:
        raise ConfigError(
            f"{type(module).__name__} has parameters on {', '.join(sorted(types))}; move it to one "
            "device, or pass device_mesh."
        )
    return types.pop() if types else current_info().device.type


def mesh_device(mesh: "DeviceMesh") -> torch.device:
    """Return the device of this process among those of a mesh."""
    is_cpu = mesh.device_type == "cpu"
    return torch.device("cpu") if is_cpu else current_device(mesh.device_type)


def average_by_sum(heads: Iterable[Any], mesh: "DeviceMesh") -> None:
    """Let ``fully_shard`` add gradients up and divide, where the backend may not know averages.

    Of the backends only NCCL is sure to know them: gloo gives sums instead in some versions of
    torch, and others refuse. Before torch 2.8 the choice is left to the backend.

    Args:
        heads: The modules of ``fully_shard``.
        mesh: Their ranks.
    """
    backends = backends_by_device_type(mesh.get_group(0))
    if backends.get(mesh.device_type) == "nccl":
        return
    for head in heads:
        if hasattr(head, "set_force_sum_reduction_for_comms"):
            head.set_force_sum_reduction_for_comms(enable=True)


def build_mesh(
    strategy: Strategy | None, device_mesh: Any, process_group: Any, device_type: str
) -> "tuple[DeviceMesh, Strategy]":
    """Return the ranks as a grid, and the strategy where the grid decides it.

    Args:
        strategy: What was asked for; ``None`` takes it from the shape of the grid.
        device_mesh: A ``DeviceMesh``, the sizes of one, or ``None``.
        process_group: The ranks, for a grid of one dimension; ``None`` for all.
        device_type: Of a grid that is made here.

    Returns:
        A mesh of one dimension (shards), or of two (copies, shards of each).

    Raises:
        ConfigError: If these do not fit each other, or the ranks.
    """
    if device_mesh is not None and process_group is not None:
        raise ConfigError("device_mesh and process_group both say which ranks; give one of them.")
    if hasattr(device_mesh, "device_type"):
        _check_mesh(device_mesh)
        mesh = device_mesh
    elif process_group is not None:
        mesh = _mesh_of_group(process_group, strategy, device_type)
    else:
        mesh = _init_mesh(_choose_shape(strategy, device_mesh), device_type)
    return mesh, _match_strategy(strategy, mesh.ndim)


def _check_mesh(mesh: Any) -> None:
    if mesh.ndim not in (1, 2) or (mesh.ndim == 2 and mesh.mesh_dim_names is None):
        raise ConfigError(
            f"device_mesh has {mesh.ndim} dimensions named {mesh.mesh_dim_names}; it needs one "
            "(shards), or two with names (copies, shards), as init_device_mesh(device_type, "
            "(2, 4), mesh_dim_names=('replicate', 'shard')) makes."
        )


def _mesh_of_group(group: Any, strategy: Strategy | None, device_type: str) -> "DeviceMesh":
    if strategy is not None and (strategy.is_hybrid or strategy.is_replicated):
        raise ConfigError(
            f"process_group with sharding_strategy {strategy.name!r} does not say how the ranks "
            "are divided; pass device_mesh=(copies, shards), or a DeviceMesh."
        )
    if not isinstance(group, dist.ProcessGroup):
        raise ConfigError(
            f"process_group={group!r} is no process group; for several groups pass "
            "device_mesh=(copies, shards), or a DeviceMesh."
        )
    from torch.distributed.device_mesh import DeviceMesh  # noqa: PLC0415 (slow to import)

    return DeviceMesh.from_group(group, device_type)


def _choose_shape(strategy: Strategy | None, sizes: Any) -> tuple[int, ...]:
    world_size = dist.get_world_size()
    if sizes is None:
        return _default_shape(strategy, world_size)
    shape = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    product = 1
    for size in shape:
        product *= size if isinstance(size, int) else 0
    if len(shape) not in (1, 2) or product != world_size or min(shape) < 1:
        raise ConfigError(
            f"device_mesh={sizes!r} does not fit {world_size} ranks; give (shards,) or "
            f"(copies, shards) whose product is {world_size}, or a DeviceMesh."
        )
    return shape


def _default_shape(strategy: Strategy | None, world_size: int) -> tuple[int, ...]:
    if strategy is not None and strategy.is_replicated:
        return world_size, 1
    if strategy is None or not strategy.is_hybrid:
        return (world_size,)
    info = current_info()
    places = all_gather_object((info.local_rank, info.local_world_size))
    sizes = {size for _, size in places}
    size = sizes.pop()
    expected = [(rank % size, size) for rank in range(world_size)] if size else None
    if places != expected or world_size % size:
        raise ConfigError(
            f"sharding_strategy {strategy.name!r} shards within each machine, and needs machines "
            "with equally many ranks, numbered machine by machine; (local rank, ranks of the "
            f"machine) by rank: {places}. Start the ranks so, or pass device_mesh=(copies, shards)."
        )
    return world_size // size, size


def _init_mesh(shape: tuple[int, ...], device_type: str) -> "DeviceMesh":
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415 (slow to import)

    return init_device_mesh(device_type, shape, mesh_dim_names=_DIMENSIONS[-len(shape) :])


def _match_strategy(strategy: Strategy | None, num_dimensions: int) -> Strategy:
    if strategy is None:
        return FULL if num_dimensions == 1 else HYBRID
    is_two_dimensional = strategy.is_hybrid or strategy.is_replicated
    if is_two_dimensional != (num_dimensions == 2):
        raise ConfigError(
            f"sharding_strategy {strategy.name!r} needs a device_mesh of "
            f"{2 if is_two_dimensional else 1} dimensions, got {num_dimensions}; leave one of the "
            "two out."
        )
    return strategy
