"""The ranks over which a model's gradients are averaged."""

import math
from typing import Any

import torch.distributed as dist
from torch import Tensor

from ._errors import ConfigError
from ._gradient_sync import synchronizing_modules


class AveragingRanks:
    """The process groups that average the gradients of one model.

    Args:
        model: A module that is, or contains, DDP or a sharded model. The gradients of any other
            stay on this rank.
    """

    def __init__(self, model: Any) -> None:
        self._groups = _groups_of(model) if _is_distributed() else []
        self.count = math.prod(dist.get_world_size(group) for group in self._groups)

    @property
    def is_alone(self) -> bool:
        """Whether nothing is averaged."""
        return self.count == 1

    def add_up(self, value: Tensor) -> Tensor:
        """Return the sum of ``value`` over the ranks; ``value`` itself is changed."""
        for group in self._groups:
            dist.all_reduce(value, group=group)
        return value


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _groups_of(model: Any) -> list[Any]:
    if model is None:
        raise ConfigError(
            "weight was given in a distributed run, but no forward ran in optim_context(model); "
            "use it, so that the wrapper knows over which ranks gradients are averaged."
        )
    for module in synchronizing_modules(model):
        group = getattr(module, "process_group", None)
        if group is not None:
            return [group, *_replica_groups(module)]
        return _mesh_groups(module) or [dist.group.WORLD]
    return []


def _replica_groups(module: Any) -> list[Any]:
    """Return the groups beyond the sharding one, for hybrid sharding of torch's first FSDP."""
    between_nodes = getattr(module, "_inter_node_pg", None)
    return [] if between_nodes is None else [between_nodes]


def _mesh_groups(module: Any) -> list[Any]:
    """Return one group per mesh dimension of the first sharded parameter.

    A dimension of tensor parallelism may be among them: its ranks see the same data, so a total
    and the number of ranks grow alike, and the mean stays.
    """
    for parameter in module.parameters():
        mesh = getattr(parameter, "device_mesh", None)
        if mesh is not None:
            return [mesh.get_group(dim) for dim in range(mesh.ndim)]
    return []
