"""Gradient exchange between ranks: defer it while micro-batches accumulate; who takes part."""

import math
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Any

import torch.distributed as dist
from torch import Tensor
from typing_extensions import override

from mm_amp._errors import ConfigError
from mm_amp._torch_private import replica_group


class SyncDeferral:
    """Defers the gradient exchange from one forward until its backward has returned.

    DDP decides in forward whether backward exchanges, sharded models decide in backward.

    Attributes:
        is_active: Whether the exchange is off now.
    """

    def __init__(self) -> None:
        self.is_active = False
        self._stack = ExitStack()
        self._model: Any = None
        self._modules: list[Any] = []

    def start(self, model: Any) -> None:
        """Turn the gradient exchange of ``model`` off until ``end``."""
        self.end()
        if model is not self._model:  # the walk through a large model takes a while
            self._model, self._modules = model, synchronizing_modules(model)
        self._stack = _turn_sync_off(self._modules)
        self.is_active = True

    def end(self) -> None:
        """Turn the exchange on again; does nothing if it is."""
        if self.is_active:
            self.is_active = False
            self._stack.close()


class DeferredSyncContext(AbstractContextManager[None]):
    """Forward whose gradient exchange stays off until ``deferral.end``, unless it raises."""

    def __init__(
        self, inner: AbstractContextManager[object], deferral: SyncDeferral, model: Any
    ) -> None:
        self._inner = inner
        self._deferral = deferral
        self._model = model

    @override
    def __enter__(self) -> None:
        self._deferral.start(self._model)
        try:
            self._inner.__enter__()
        except BaseException:
            self._deferral.end()
            raise

    @override
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._deferral.end()
        self._inner.__exit__(kind, error, traceback)


def synchronizing_modules(module: Any) -> list[Any]:
    """Return the outermost modules that exchange gradients; each includes its children.

    They are those with ``no_sync()`` (DDP, the first FSDP) or ``set_requires_gradient_sync()``
    (``fully_shard``).
    """
    if hasattr(module, "no_sync") or hasattr(module, "set_requires_gradient_sync"):
        return [module]
    children = module.children() if hasattr(module, "children") else ()
    return [found for child in children for found in synchronizing_modules(child)]


def _turn_sync_off(modules: list[Any]) -> ExitStack:
    stack = ExitStack()
    try:
        for module in modules:
            if hasattr(module, "no_sync"):
                stack.enter_context(module.no_sync())
            else:
                stack.callback(module.set_requires_gradient_sync, True)  # noqa: FBT003
                module.set_requires_gradient_sync(False)  # torch names this argument in two ways
    except BaseException:
        stack.close()
        raise
    return stack


class AveragingRanks:
    """Process groups that average the gradients of one model.

    Args:
        model: A module that is, or contains, DDP or a sharded model. The gradients of any other
            stay on this rank.

    Raises:
        ConfigError: If the run is distributed and there is no model.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self._groups = _groups_of(model) if _is_distributed() else []
        self.count = math.prod(dist.get_world_size(group) for group in self._groups)

    @property
    def is_alone(self) -> bool:
        """Whether gradients stay on this rank."""
        return self.count == 1

    def all_reduce(self, value: Tensor) -> Tensor:
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
            replicas = replica_group(module)
            return [group] if replicas is None else [group, replicas]
        return _mesh_groups(module) or [dist.group.WORLD]
    return []


def _mesh_groups(module: Any) -> list[Any]:
    """Return one group per mesh dimension of the first sharded parameter.

    Ranks of a tensor-parallel dimension see the same data: sum and count grow alike, the mean
    stays.
    """
    for parameter in module.parameters():
        mesh = getattr(parameter, "device_mesh", None)
        if mesh is not None:
            return [mesh.get_group(dim) for dim in range(mesh.ndim)]
    return []
