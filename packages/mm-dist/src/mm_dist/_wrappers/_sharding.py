"""Shard a module in place, group by group, so that only one group is whole at a time."""

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mm_dist._backends import backends_by_device_type
from mm_dist._errors import ArgumentTypeError, ConfigError, LaunchError, TorchVersionError
from mm_dist._process_group import is_distributed
from mm_dist._torch_private import find_reset
from mm_dist._wrappers._recognition import is_model_wrapper
from mm_dist._wrappers._sharding_arguments import (
    choose_modules,
    find_ignored,
    read_offload,
    read_precision,
)
from mm_dist._wrappers._sharding_mesh import (
    broadcast_over,
    build_mesh,
    choose_device_type,
    mesh_device,
)

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_NAME = "MMFullyShardedDataParallel"


def shard_module(
    module: nn.Module, options: dict[str, Any]
) -> "tuple[DeviceMesh, str, tuple[Any, ...]]":
    """Shard ``module`` in place.

    Args:
        module: The model.
        options: The other arguments of ``MMFullyShardedDataParallel``, by name.

    Returns:
        The ranks, the name of the strategy, and the modules of ``fully_shard``: inner ones first,
        the module itself last.

    Raises:
        MMDistError: As said there.
    """
    _check_module(module)
    device_type, fully_shard = _load_fully_shard(module, options["device_mesh"])
    ignored = find_ignored(module, options["ignored_modules"], options["ignored_parameters"])
    if ignored and "ignored_params" not in inspect.signature(fully_shard).parameters:
        raise TorchVersionError(
            "Parameters that are not sharded (ignored_modules, ignored_parameters, or those of a "
            f"data_preprocessor) need torch 2.7 or newer; this is {torch.__version__}."
        )
    precision = read_precision(options["mixed_precision"])
    candidates = _groupable_modules(module, ignored)
    exempt = set(precision.find_exempt(candidates))
    chosen = {*choose_modules(options["auto_wrap_policy"], candidates), *exempt}
    chosen = _keep_ties_together(module, chosen, ignored)
    mesh, strategy = build_mesh(
        options["sharding_strategy"], options["device_mesh"], options["process_group"], device_type
    )
    device = mesh_device(mesh)
    offload = read_offload(options["cpu_offload"], mesh.device_type)
    freeing = options["reshard_after_forward"]
    materializer = _Materializer(module, device, options["param_init_fn"])
    heads = [one for one in _inner_first(module, set()) if one is module or one in chosen]
    done: set[nn.Module] = set()
    for head in heads:
        members = list(_inner_first(head, done))
        materializer.materialize(members)
        if options["sync_module_states"]:
            _copy_from_first_rank(members, mesh, device)
        policy = precision.root if head is module else precision.inner
        arguments: dict[str, Any] = {}
        if freeing is not None:
            arguments["reshard_after_forward"] = freeing
        elif head is not module:  # torch's default: backward needs the outermost group at once
            arguments["reshard_after_forward"] = strategy.is_freed
        if ignored:
            arguments["ignored_params"] = materializer.current(ignored)
        fully_shard(
            head,
            mesh=mesh,
            mp_policy=precision.exempt if head in exempt else policy,
            offload_policy=offload,
            **arguments,
        )
    for parameter in materializer.current(ignored):
        parameter.data = parameter.data.to(device)
    _average_by_sum(heads, mesh)
    return mesh, strategy.name, tuple(heads)


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
    device_type = choose_device_type(module, device_mesh)
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


def _keep_ties_together(
    root: nn.Module, heads: set[nn.Module], ignored: set[nn.Parameter]
) -> set[nn.Module]:
    """Return the heads under which no shared parameter belongs to two groups."""
    modules = dict(root.named_modules(remove_duplicate=False))
    places: defaultdict[nn.Parameter, list[list[nn.Module]]] = defaultdict(list)
    for name, module in modules.items():
        parts = name.split(".") if name else []
        around = [modules[".".join(parts[:length])] for length in range(len(parts) + 1)]
        for parameter in set(module.parameters(recurse=False)) - ignored:
            places[parameter].append(around)
    kept = set(heads)
    is_changed = True
    while is_changed:
        before = len(kept)
        for chains in places.values():
            innermost = {next((m for m in reversed(c) if m in kept), root) for c in chains}
            if len(innermost) > 1:
                kept -= innermost - set(chains[0]).intersection(*chains)
        is_changed = len(kept) < before
    return kept


def _average_by_sum(heads: Iterable[Any], mesh: "DeviceMesh") -> None:
    """Average gradients by sum and division where the backend may lack averages.

    Of the backends only NCCL is sure to: gloo gives sums instead in some versions of torch.
    """
    if backends_by_device_type(mesh.get_group(0)).get(mesh.device_type) == "nccl":
        return
    for head in heads:
        if hasattr(head, "set_force_sum_reduction_for_comms"):  # torch 2.8
            head.set_force_sum_reduction_for_comms(enable=True)


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


class _Materializer:
    """Puts modules from the meta device on a real one, and initialises them."""

    def __init__(
        self,
        root: nn.Module,
        device: torch.device,
        init_function: Callable[[nn.Module], Any] | None,
    ) -> None:
        self._names = {module: name for name, module in root.named_modules()}
        self._device = device
        self._init_function = init_function
        # A tied parameter is one object at several places, and has to stay one.
        self._replacements: dict[Any, Any] = {}

    def current(self, parameters: Iterable[nn.Parameter]) -> set[nn.Parameter]:
        """Map parameters that were on the meta device to their replacements."""
        return {self._replacements.get(parameter, parameter) for parameter in parameters}

    def materialize(self, members: Iterable[nn.Module]) -> None:
        """Allocate and initialise the members that hold tensors on the meta device."""
        empty = [m for m in members if any(t.is_meta for _, t in _own_tensors(m))]
        for module in empty:
            for name, tensor in list(_own_tensors(module)):
                if tensor.is_meta:
                    setattr(module, name, self._replace(tensor))
        for module in empty:
            label = f"{type(module).__name__} {self._names.get(module, '')!r}"
            initialize = self._init_function or find_reset(module)
            if initialize is None:
                raise ConfigError(
                    f"{label} is on the meta device and has no reset_parameters(); pass "
                    "param_init_fn, which is called with each such module, or build the model on "
                    "a real device."
                )
            with torch.no_grad():
                initialize(module)
        for module in empty:
            for name, tensor in _own_tensors(module):
                if tensor.is_meta or _is_untouched(tensor):
                    how = "param_init_fn" if self._init_function else "reset_parameters()"
                    raise ConfigError(
                        f"{how} did not initialise {name!r} of {type(module).__name__} "
                        f"{self._names.get(module, '')!r}, which was on the meta device; let it "
                        "fill every parameter and buffer that the module holds itself."
                    )

    def _replace(self, tensor: Tensor) -> Any:
        if tensor not in self._replacements:
            values = torch.empty_like(tensor, device=self._device).fill_(_placeholder(tensor))
            is_parameter = isinstance(tensor, nn.Parameter)
            self._replacements[tensor] = (
                nn.Parameter(values, tensor.requires_grad) if is_parameter else values
            )
        return self._replacements[tensor]


def _placeholder(tensor: Tensor) -> float | int:
    """Return the value that marks uninitialised tensors."""
    if tensor.is_floating_point() or tensor.is_complex():
        return torch.nan
    return 0 if tensor.dtype == torch.bool else torch.iinfo(tensor.dtype).max


def _is_untouched(tensor: Tensor) -> bool:
    if tensor.is_floating_point() or tensor.is_complex():
        return bool(tensor.isnan().any())
    # One such number can be meant; booleans have no value to spare.
    is_countable = tensor.dtype != torch.bool and tensor.numel() > 0
    return is_countable and bool((tensor == _placeholder(tensor)).all())


def _own_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield a module's own parameters and buffers, under each of their names."""
    yield from module.named_parameters(recurse=False, remove_duplicate=False)
    yield from module.named_buffers(recurse=False, remove_duplicate=False)
