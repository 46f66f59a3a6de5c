"""Gradient exchange between ranks: defer it while micro-batches accumulate; who takes part."""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch.distributed as dist
from torch import Tensor

from mm_amp._errors import ConfigError


class SyncDeferral:
    """Defers the gradient exchange from one forward until its backward has returned.

    DDP decides in forward whether backward exchanges, sharded models decide in backward.

    Attributes:
        is_active: Whether the exchange is off now.
    """

    def __init__(self, modules: list[Any]) -> None:
        self.is_active = False
        self._stack = ExitStack()
        self._modules = modules

    @contextmanager
    def around(self, forward: AbstractContextManager[object]) -> Iterator[None]:
        """Run a forward; its exchange stays off until ``end``, unless the forward raises."""
        self.end()
        self.is_active = True
        try:
            for module in self._modules:
                if hasattr(module, "no_sync"):
                    self._stack.enter_context(module.no_sync())
                else:  # torch names this argument in two ways
                    self._stack.callback(module.set_requires_gradient_sync, True)  # noqa: FBT003
                    module.set_requires_gradient_sync(False)
            with forward:
                yield
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Turn the exchange on again; does nothing if it is."""
        if self.is_active:
            self.is_active = False
            self._stack.close()


def synchronizing_modules(module: Any) -> list[Any]:
    """Return the outermost modules that exchange gradients; each includes its children.

    They are those with ``no_sync()`` (DDP) or ``set_requires_gradient_sync()`` (``fully_shard``).
    """
    if hasattr(module, "no_sync") or hasattr(module, "set_requires_gradient_sync"):
        return [module]
    children = module.children() if hasattr(module, "children") else ()
    return [found for child in children for found in synchronizing_modules(child)]


class AveragingRanks:
    """Process groups that average the gradients of one model.

    Attributes:
        count: Number of ranks; 1 unless the model is, or contains, DDP or a sharded model.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        is_distributed = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        self._groups = _groups_of(model) if is_distributed else []
        self.count = math.prod(dist.get_world_size(group) for group in self._groups)

    def all_reduce(self, value: Tensor) -> Tensor:
        """Return the sum of ``value`` over the ranks; ``value`` itself is changed."""
        for group in self._groups:
            dist.all_reduce(value, group=group)
        return value


def _groups_of(model: Any) -> list[Any]:
    if model is None:
        raise ConfigError(
            "weight was given in a distributed run, but no forward ran in optim_context(model); "
            "use it, so that the wrapper knows over which ranks gradients are averaged."
        )
    for module in synchronizing_modules(model):
        group = getattr(module, "process_group", None)
        if group is not None:
            return [group]
        meshes = {getattr(one, "device_mesh", None): None for one in module.parameters()}
        found = [mesh for mesh in meshes if mesh is not None]
        if found:
            # Ranks of a tensor-parallel dimension see the same data: sum and count grow alike.
            mesh = max(found, key=lambda one: one.ndim)
            return [mesh.get_group(dim) for dim in range(mesh.ndim)]
        return [dist.group.WORLD]
    return []
