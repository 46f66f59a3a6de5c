"""The ranks that parameters are sharded over, as a ``DeviceMesh``."""

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mm_dist._collectives import all_gather_object
from mm_dist._device_choice import current_device
from mm_dist._errors import ConfigError
from mm_dist._process_group import current_info
from mm_dist._wrappers._sharding_arguments import Strategy, read_strategy

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


def is_first_rank(mesh: "DeviceMesh") -> bool:
    """Return whether this process is the first of a mesh."""
    return all(index == 0 for index in mesh.get_coordinate() or ())


def broadcast_over(mesh: "DeviceMesh", tensor: Tensor) -> None:
    """Overwrite ``tensor`` by that of the mesh's first rank, in place."""
    # Not every backend sends complex numbers, and none what is not contiguous.
    plain = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    sent = plain.contiguous()
    for group in mesh.get_all_groups() if tensor.numel() else ():
        dist.broadcast(sent, dist.get_global_rank(group, 0), group)
    if sent is not plain:
        plain.copy_(sent)


def build_mesh(
    strategy_name: Any, device_mesh: Any, process_group: Any, device_type: str
) -> "tuple[DeviceMesh, Strategy]":
    """Return the ranks as a mesh, and the strategy, which the mesh decides where none is named.

    Args:
        strategy_name: ``sharding_strategy`` as the user gave it.
        device_mesh: A ``DeviceMesh``, the sizes of one, or ``None``.
        process_group: The ranks, for a mesh of one dimension; ``None`` for all.
        device_type: Of a mesh that is made here.

    Returns:
        A mesh of one dimension (shards), or of two (copies, shards of each).

    Raises:
        ConfigError: If these do not fit each other, or the ranks.
    """
    from torch.distributed.device_mesh import (  # noqa: PLC0415 (slow to import)
        DeviceMesh,
        init_device_mesh,
    )

    strategy = read_strategy(strategy_name)
    if process_group is not None:
        is_group = isinstance(process_group, dist.ProcessGroup)
        if not is_group or device_mesh is not None or strategy.is_two_dimensional:
            raise ConfigError(
                f"process_group={process_group!r} must be one process group, for a strategy "
                "without copies, and goes without device_mesh. For others pass "
                "device_mesh=(copies, shards), or a DeviceMesh."
            )
        return DeviceMesh.from_group(process_group, device_type), strategy
    if isinstance(device_mesh, DeviceMesh):
        mesh = device_mesh
    else:
        shape = _default_shape(strategy) if device_mesh is None else _read_shape(device_mesh)
        names = _DIMENSIONS[-len(shape) :]
        mesh = init_device_mesh(device_type, shape, mesh_dim_names=names)
    if strategy_name is None:
        strategy = read_strategy(None, default="hybrid" if mesh.ndim == 2 else "full")
    if mesh.ndim != 1 + strategy.is_two_dimensional or (mesh.ndim == 2 and not mesh.mesh_dim_names):
        raise ConfigError(
            f"device_mesh has {mesh.ndim} dimensions named {mesh.mesh_dim_names}; strategy "
            f"{strategy.name!r} needs "
            + (
                "two with names (copies, shards), as init_device_mesh(device_type, (2, 4), "
                "mesh_dim_names=('replicate', 'shard')) makes."
                if strategy.is_two_dimensional
                else "one (shards)."
            )
        )
    return mesh, strategy


def _read_shape(sizes: Any) -> tuple[int, ...]:
    world_size = dist.get_world_size()
    shape = tuple(sizes) if isinstance(sizes, (tuple, list)) else (sizes,)
    is_whole = all(isinstance(size, int) and size > 0 for size in shape)
    if not is_whole or len(shape) > 2 or math.prod(shape) != world_size:
        raise ConfigError(
            f"device_mesh={sizes!r} does not fit {world_size} ranks; give (shards,) or "
            f"(copies, shards) whose product is {world_size}, or a DeviceMesh."
        )
    return shape


def _default_shape(strategy: Strategy) -> tuple[int, ...]:
    world_size = dist.get_world_size()
    if strategy.name == "no-shard":
        return world_size, 1
    if not strategy.is_two_dimensional:
        return (world_size,)
    info = current_info()
    places = all_gather_object((info.local_rank, info.local_world_size))
    size = info.local_world_size or 1
    if world_size % size or places != [(rank % size, size) for rank in range(world_size)]:
        raise ConfigError(
            f"sharding_strategy {strategy.name!r} shards within each machine, and needs machines "
            "with equally many ranks, numbered machine by machine; (local rank, ranks of the "
            f"machine) by rank: {places}. Start the ranks so, or pass device_mesh=(copies, shards)."
        )
    return world_size // size, size
