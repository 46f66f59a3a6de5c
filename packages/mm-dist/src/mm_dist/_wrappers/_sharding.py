"""Shard a module in place, group by group, so that only one group is whole at a time."""

import inspect
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mm_dist._backends import backends_by_device_type
from mm_dist._collectives._objects import all_gather_object
from mm_dist._devices import current_device
from mm_dist._errors import ArgumentTypeError, ConfigError, LaunchError, TorchVersionError
from mm_dist._process_group._current import current_info
from mm_dist._state import is_distributed
from mm_dist._torch_private import BATCH_NORM, find_reset
from mm_dist._wrappers import _tensor_parallel as tensor_parallel
from mm_dist._wrappers._recognition import is_model_wrapper
from mm_dist._wrappers._sharding_arguments import (
    Strategy,
    choose_modules,
    find_ignored,
    read_offload,
    read_precision,
    read_strategy,
)

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_NAME = "MMFullyShardedDataParallel"


def shard_module(
    module: nn.Module, options: dict[str, Any]
) -> "tuple[DeviceMesh, str, tuple[Any, ...]]":
    """Shard ``module`` in place; return mesh, strategy and sharded modules, root last."""
    _check_module(module)
    device_type, fully_shard = _load_fully_shard(module, options["device_mesh"])
    ignored = find_ignored(module, options["ignored_modules"])
    if ignored and "ignored_params" not in inspect.signature(fully_shard).parameters:
        raise TorchVersionError(
            "Parameters that are not sharded (those of ignored_modules or a data_preprocessor) "
            f"need torch 2.7 or newer; this is {torch.__version__}."
        )
    root_policy, policy, exempt_policy = read_precision(options["mixed_precision"])
    candidates = _groupable_modules(module, ignored)
    norms = (one for one in candidates.values() if isinstance(one, BATCH_NORM))
    exempt = set(norms if exempt_policy is not None else ())
    chosen = {*choose_modules(options["auto_wrap_policy"], candidates), *exempt}
    chosen = _keep_ties_together(module, chosen)
    mesh, strategy = _build_mesh(options, device_type)
    device = mesh_device(mesh)
    offload = read_offload(options["cpu_offload"], mesh.device_type)
    heads = [one for one in _inner_first(module, set()) if one is module or one in chosen]
    done: set[nn.Module] = set()
    # A tied parameter is one object at several places, and has to stay one.
    materialized: dict[Any, Any] = {}
    arguments: dict[str, Any] = {"mesh": mesh}
    if options["plan"] is not None:
        # Layers are split whole, before the groups are formed.
        _prepare(_inner_first(module, set()), mesh, device, options, materialized)
        tensor_parallel.parallelize(module, mesh, options["plan"])
        arguments["shard_placement_fn"] = tensor_parallel.data_placement(mesh)
    if options["mesh"] is not None:
        arguments["mesh"] = mesh[tensor_parallel.DATA]
    for head in heads:
        if options["plan"] is None:
            _prepare(_inner_first(head, done), mesh, device, options, materialized)
        # The outermost by torch's default: backward needs it at once.
        freed = {} if head is module else {"reshard_after_forward": strategy.is_freed}
        if ignored:
            arguments["ignored_params"] = {materialized.get(one, one) for one in ignored}
        own_policy = root_policy if head is module else policy
        fully_shard(
            head,
            mp_policy=exempt_policy if head in exempt else own_policy,
            offload_policy=offload,
            **arguments,
            **freed,
        )
    for parameter in (materialized.get(one, one) for one in ignored):
        parameter.data = parameter.data.to(device)
    _average_by_sum(heads, mesh)
    return mesh, strategy.name, tuple(heads)


def _prepare(
    modules: Iterable[nn.Module],
    mesh: "DeviceMesh",
    device: torch.device,
    options: dict[str, Any],
    materialized: dict[Any, Any],
) -> None:
    """Give modules their values, on their device."""
    members = list(modules)
    _materialize(members, device, options["param_init_fn"], materialized)
    if options["sync_module_states"]:
        _copy_from_first_rank(members, mesh, device)


def _average_by_sum(heads: Iterable[Any], mesh: "DeviceMesh") -> None:
    """Average gradients by sum and division where the backend may lack averages.

    Of the backends only NCCL is sure to: gloo gives sums instead in some versions of torch.
    """
    if backends_by_device_type(mesh.get_group(0)).get(mesh.device_type) == "nccl":
        return
    for head in heads:
        if hasattr(head, "set_force_sum_reduction_for_comms"):  # torch 2.8
            head.set_force_sum_reduction_for_comms(enable=True)


def _check_module(module: Any) -> None:
    if not isinstance(module, nn.Module):
        raise ArgumentTypeError(f"module must be a torch.nn.Module, got {type(module)}.")
    for name, part in module.named_modules():
        if is_model_wrapper(part):
            place = f"{name!r} in it, a {type(part).__name__}," if name else type(part).__name__
            raise ConfigError(
                f"{place} is wrapped or sharded already; give {_NAME} the bare model."
            )


def _load_fully_shard(module: nn.Module, device_mesh: Any) -> tuple[str, Any]:
    """Return the type of device, and ``fully_shard``, if this torch has what is needed."""
    major, minor = str(torch.__version__).split(".")[:2]
    version = int(major), int(minor)
    if version < (2, 6):
        raise TorchVersionError(
            f"{_NAME} builds on torch.distributed.fsdp.fully_shard, which torch has since 2.6; "
            f"this is {torch.__version__}. Upgrade torch, or use MMDistributedDataParallel."
        )
    if not is_distributed():
        raise LaunchError(
            f"{_NAME} needs a process group, and there is none; call mm_dist.init_dist first, "
            "under a launcher such as torchrun. A single process needs no wrapper."
        )
    types = {parameter.device.type for parameter in module.parameters()} - {"cpu", "meta"}
    if hasattr(device_mesh, "device_type"):
        types = {str(device_mesh.device_type)}
    if len(types) > 1:
        raise ConfigError(
            f"{type(module).__name__} has parameters on {', '.join(sorted(types))}; move it to one "
            "device, or pass device_mesh."
        )
    # A module on the CPU or on the meta device goes to the device of this process.
    device_type = types.pop() if types else current_info().device.type
    # Before, gloo adds gradients up where it is asked for their average, and says nothing.
    if device_type == "cpu" and version < (2, 8):
        raise TorchVersionError(
            f"{_NAME} on the CPU needs torch 2.8 or newer, whose fully_shard can average "
            f"gradients there; this is {torch.__version__}. Upgrade torch, use an accelerator, or "
            "use MMDistributedDataParallel."
        )
    return device_type, import_module("torch.distributed.fsdp").fully_shard  # slow to import


def _groupable_modules(root: nn.Module, ignored: set[nn.Parameter]) -> dict[str, nn.Module]:
    """Return the modules inside ``root`` that may be sharded by themselves, by name."""
    # A data preprocessor is called outside the model's forward.
    preprocessor = getattr(root, "data_preprocessor", None)
    hidden = set(preprocessor.modules()) if isinstance(preprocessor, nn.Module) else set()
    for module in root.modules():
        if isinstance(module, nn.MultiheadAttention):
            # It reads the weights of what is inside it without calling it.
            hidden |= set(module.modules()) - {module}
    return {
        name: module
        for name, module in root.named_modules()
        if module is not root
        and module not in hidden
        and any(parameter not in ignored for parameter in module.parameters())
    }


def _inner_first(module: nn.Module, seen: set[nn.Module]) -> Iterator[nn.Module]:
    """Yield each module that is not in ``seen`` once, after all modules inside it."""
    if module not in seen:
        seen.add(module)
        for child in module.children():
            yield from _inner_first(child, seen)
        yield module


def _keep_ties_together(root: nn.Module, heads: set[nn.Module]) -> set[nn.Module]:
    """Return the heads that share no parameter with a module outside of them."""
    modules = dict(root.named_modules(remove_duplicate=False))
    places: defaultdict[nn.Parameter, list[set[nn.Module]]] = defaultdict(list)
    for name, module in modules.items():
        parts = name.split(".") if name else []
        around = {modules[".".join(parts[:length])] for length in range(len(parts) + 1)}
        for parameter in module.parameters(recurse=False):
            places[parameter].append(around)
    return {
        head
        for head in heads
        if all(head in around for p in head.parameters() for around in places[p])
    }


def _copy_from_first_rank(
    members: Iterable[nn.Module], mesh: "DeviceMesh", device: torch.device
) -> None:
    """Move the modules' own tensors to ``device``, with the values of the mesh's first rank."""
    for tensor in {tensor: None for module in members for _, tensor in _own_tensors(module)}:
        if hasattr(tensor, "placements"):  # distributed already, by whoever divided the model
            continue
        if tensor.device != device:
            tensor.data = tensor.data.to(device)
        broadcast_over(mesh, tensor.detach())


def _materialize(
    members: Iterable[nn.Module],
    device: torch.device,
    init_function: Any,
    replacements: dict[Any, Any],
) -> None:
    """Allocate and initialize the modules that hold tensors on the meta device."""
    for module in [m for m in members if any(t.is_meta for _, t in _own_tensors(m))]:
        for name, tensor in list(_own_tensors(module)):
            if tensor.is_meta and tensor not in replacements:
                values = torch.full_like(tensor, _mark(tensor), device=device)
                is_parameter = isinstance(tensor, nn.Parameter)
                replacements[tensor] = (
                    nn.Parameter(values, tensor.requires_grad) if is_parameter else values
                )
            setattr(module, name, replacements.get(tensor, tensor))
        initialize = init_function or find_reset(module)
        if initialize is not None:
            with torch.no_grad():
                initialize(module)
        left = [
            name
            for name, tensor in _own_tensors(module)
            if initialize is None or _is_untouched(tensor)
        ]
        if left:
            raise ConfigError(
                f"Nothing has initialized {', '.join(left)} of {type(module).__name__}, which was "
                "on the meta device. Give the module a reset_parameters() that fills all that it "
                "holds itself, pass param_init_fn, or build the model on a real device."
            )


def _mark(tensor: Tensor) -> float:
    """Return the value that marks what nobody has initialized; booleans have none to spare."""
    if tensor.is_floating_point():
        return torch.nan
    is_number = tensor.dtype != torch.bool and not tensor.is_complex()
    return torch.iinfo(tensor.dtype).max if is_number else 0


def _is_untouched(tensor: Tensor) -> bool:
    if tensor.is_floating_point():
        return bool(tensor.isnan().any())
    # One such number can be meant.
    return tensor.numel() > 0 and _mark(tensor) != 0 and bool((tensor == _mark(tensor)).all())


def _own_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield a module's own parameters and buffers, under each of their names."""
    yield from module.named_parameters(recurse=False, remove_duplicate=False)
    yield from module.named_buffers(recurse=False, remove_duplicate=False)


def mesh_device(mesh: "DeviceMesh") -> torch.device:
    """Return the device of this process among those of a mesh."""
    is_cpu = mesh.device_type == "cpu"
    return torch.device("cpu") if is_cpu else current_device(mesh.device_type)


def broadcast_over(mesh: "DeviceMesh", tensor: Tensor) -> None:
    """Overwrite ``tensor`` by that of the mesh's first rank, in place."""
    # Not every backend sends complex numbers, and none what is not contiguous.
    plain = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    sent = plain.contiguous()
    for group in mesh.get_all_groups() if tensor.numel() else ():
        dist.broadcast(sent, dist.get_global_rank(group, 0), group)
    if sent is not plain:
        plain.copy_(sent)


def _build_mesh(options: dict[str, Any], device_type: str) -> "tuple[DeviceMesh, Strategy]":
    """Return the ranks as a mesh, and the strategy, which the mesh decides where none is named."""
    from torch.distributed.device_mesh import (  # noqa: PLC0415 (slow to import)
        DeviceMesh,
        init_device_mesh,
    )

    strategy_name, device_mesh = options["sharding_strategy"], options["device_mesh"]
    process_group = options["process_group"]
    strategy = read_strategy("full" if strategy_name is None else strategy_name)
    if options["mesh"] is not None or options["plan"] is not None:
        if options["mesh"] is None or strategy.is_two_dimensional:
            raise ConfigError(
                "plan goes with mesh=dict(data=..., tensor=...), and both with a strategy without "
                f"copies: 'full' or 'grad-op'; got sharding_strategy={strategy.name!r}."
            )
        return tensor_parallel.build_mesh(options, device_type), strategy
    if process_group is not None:
        is_group = isinstance(process_group, dist.ProcessGroup)
        if not is_group or device_mesh is not None or strategy.is_two_dimensional:
            raise ConfigError(
                "process_group is one group, goes without device_mesh, and with a strategy "
                "without copies. For others pass device_mesh=(copies, shards), or a DeviceMesh."
            )
        return DeviceMesh.from_group(process_group, device_type), strategy
    if isinstance(device_mesh, DeviceMesh):
        mesh = device_mesh
    else:
        shape = _default_shape(strategy) if device_mesh is None else _read_shape(device_mesh)
        names = ("replicate", "shard")[-len(shape) :]
        mesh = init_device_mesh(device_type, shape, mesh_dim_names=names)
    if strategy_name is None and mesh.ndim == 2:
        strategy = read_strategy("hybrid")
    if mesh.ndim != 1 + strategy.is_two_dimensional or (mesh.ndim == 2 and not mesh.mesh_dim_names):
        needed = (
            "two with names (copies, shards)" if strategy.is_two_dimensional else "one (shards)"
        )
        raise ConfigError(
            f"device_mesh has {mesh.ndim} dimensions named {mesh.mesh_dim_names}; strategy "
            f"{strategy.name!r} needs {needed}."
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
            f"sharding_strategy {strategy.name!r} needs machines with equally many ranks, numbered "
            f"machine by machine; found (local rank, ranks of the machine): {places}. Start the "
            "ranks so, or pass device_mesh=(copies, shards)."
        )
    return world_size // size, size
