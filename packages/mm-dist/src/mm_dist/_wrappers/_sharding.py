"""Shard a module in place, group by group."""

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from mm_dist._wrappers._sharding_checks import (
    check_device_id,
    check_device_type,
    check_module,
    check_shapes,
    has_joint_casts,
    load_fsdp,
    warn_of_former_arguments,
)
from mm_dist._wrappers._sharding_groups import (
    Group,
    divide,
    groupable_modules,
    keep_ties_together,
)
from mm_dist._wrappers._sharding_ignored import find_ignored, ignored_argument, place_ignored
from mm_dist._wrappers._sharding_materialize import Materializer, copy_from_first_rank
from mm_dist._wrappers._sharding_mesh import (
    average_by_sum,
    build_mesh,
    choose_device_type,
    mesh_device,
)
from mm_dist._wrappers._sharding_policy import choose_modules
from mm_dist._wrappers._sharding_precision import Precision, read_offload, read_precision
from mm_dist._wrappers._sharding_strategy import Strategy, read_strategy

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sharding:
    """How a module was sharded.

    Attributes:
        mesh: The ranks, as a grid.
        strategy: What is sharded, and when parameters are freed.
        heads: The modules of ``fully_shard``, inner ones first, the module itself last.
    """

    mesh: "DeviceMesh"
    strategy: Strategy
    heads: tuple[Any, ...]


def shard_module(module: nn.Module, options: dict[str, Any]) -> Sharding:
    """Shard ``module`` in place.

    Args:
        module: The model.
        options: The other arguments of ``MMFullyShardedDataParallel``, by name.

    Raises:
        MMDistError: As said there.
    """
    check_module(module)
    fsdp = load_fsdp()
    warn_of_former_arguments(options)
    strategy = read_strategy(options["sharding_strategy"], options["reshard_after_forward"])
    ignored = find_ignored(module, options)
    check_shapes(module, ignored)
    ignored_argument(fsdp.fully_shard, ignored)
    device_type = choose_device_type(module, options["device_mesh"])
    check_device_type(device_type)
    groups, precision = _divide_module(module, options, ignored)
    mesh, strategy = build_mesh(
        strategy, options["device_mesh"], options["process_group"], device_type
    )
    check_device_id(options["device_id"], mesh_device(mesh))
    worker = _GroupSharder(module, mesh, strategy, precision, ignored, options)
    for group in groups:
        worker.shard(group, fsdp.fully_shard)
    worker.finish()
    heads = tuple(head for group in groups for head in group.heads)
    average_by_sum(heads, mesh)
    _logger.debug("sharded %s in %d groups over %s", type(module).__name__, len(groups), mesh)
    return Sharding(mesh, strategy, heads)


def _divide_module(
    module: nn.Module, options: dict[str, Any], ignored: set[nn.Parameter]
) -> tuple[list[Group], Precision]:
    precision = read_precision(options["mixed_precision"])
    preprocessor = getattr(module, "data_preprocessor", None)
    outside = preprocessor if isinstance(preprocessor, nn.Module) else None
    candidates = groupable_modules(module, outside, ignored)
    chosen = choose_modules(module, options["auto_wrap_policy"], candidates)
    exempt = precision.find_exempt(candidates)
    heads = keep_ties_together(module, [*chosen, *exempt], ignored)
    exempt_heads = heads & set(exempt)
    groups = divide(module, heads - exempt_heads, exempt_heads, is_joint=has_joint_casts())
    return groups, precision


class _GroupSharder:
    """Shards one group after the other, so that only one is whole on the device at a time."""

    def __init__(
        self,
        root: nn.Module,
        mesh: "DeviceMesh",
        strategy: Strategy,
        precision: Precision,
        ignored: set[nn.Parameter],
        options: dict[str, Any],
    ) -> None:
        self._root = root
        self._mesh = mesh
        self._precision = precision
        self._ignored = ignored
        self._device = mesh_device(mesh)
        self._is_synchronized = options["sync_module_states"]
        self._offload = read_offload(options["cpu_offload"], mesh.device_type)
        self._materializer = Materializer(root, self._device, options["param_init_fn"])
        # torch keeps the outermost group gathered until backward, which needs it at once.
        given = options["reshard_after_forward"]
        self._root_freeing = {} if given is None else {"reshard_after_forward": given}
        self._freeing = {
            "reshard_after_forward": strategy.reshard_after_forward if given is None else given
        }

    def shard(self, group: Group, fully_shard: Any) -> None:
        self._materializer.materialize(group.members)
        if self._is_synchronized:
            copy_from_first_rank(group.members, self._mesh, self._device)
        is_root = group.heads == [self._root]
        fully_shard(
            group.heads if len(group.heads) > 1 else group.heads[0],
            mesh=self._mesh,
            mp_policy=self._precision.of(is_root=is_root, is_exempt=group.is_exempt),
            offload_policy=self._offload,
            **(self._root_freeing if is_root else self._freeing),
            **ignored_argument(fully_shard, self._current_ignored()),
        )

    def finish(self) -> None:
        place_ignored(self._current_ignored(), self._device)

    def _current_ignored(self) -> set[nn.Parameter]:
        return self._materializer.current(self._ignored)
