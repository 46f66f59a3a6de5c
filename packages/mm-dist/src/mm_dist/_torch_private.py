"""torch's private names, each with the fallback where this torch lacks it.

Everything else in this package reads them through these functions.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

_Class = TypeVar("_Class", bound=type)

# Read by name, so that a build without torch.distributed can be imported.
_C10D: Any = getattr(dist, "distributed_c10d", None)


def _find(owner: Any, name: str) -> Any:
    """Return a private attribute of torch, ``None`` where there is none."""
    return getattr(owner, name, None)


def list_groups() -> list[tuple[Any, str]]:
    """Return the process groups of this process, with their backends.

    Without the name: the default group alone, so that a shorter timeout and the hang report do not
    reach subgroups.
    """
    found = _find(_C10D, "_pg_map")
    if isinstance(found, dict):
        return [(group, str(description[0])) for group, description in list(found.items())]
    return [(dist.group.WORLD, str(dist.get_backend()))] if dist.is_initialized() else []


def group_name(group: Any) -> str:
    """Return torch's name of a group; without it, none."""
    names = _find(_C10D, "_pg_names")
    return str(names.get(group, "")) if isinstance(names, dict) else ""


def group_members() -> dict[str, list[int]]:
    """Map the name of each group to its global ranks; without it, empty."""
    found = _find(_C10D, "_pg_group_ranks")
    members = list(found.items()) if isinstance(found, dict) else []
    return {group_name(group): sorted(ranks) for group, ranks in members if group_name(group)}


def default_store() -> Any | None:
    """Return the store of the default group; without it there is no hang report."""
    read = _find(_C10D, "_get_default_store")
    return None if read is None else read()


def find_abort() -> Callable[[], None] | None:
    """Return torch's function that aborts all groups; without it they end with the process."""
    abort: Callable[[], None] | None = _find(_C10D, "_abort_process_group")
    # Once all backends can, the group itself has the method.
    can_abort = hasattr(dist.ProcessGroup, "abort") or dist.get_backend() == "nccl"
    return abort if can_abort else None


def count_collectives(group: Any) -> int | None:
    """Return torch's count of a group's collectives; without it the stack alone is compared."""
    read = _find(group, "_get_sequence_number_for_group")
    try:
        return None if read is None else int(read())
    except RuntimeError:
        return None


def backend_of(group: Any, device_type: str) -> Any:
    """Return a group's backend for a device type; without it the group, as in torch 1.x."""
    read = _find(group, "_get_backend")
    return group if read is None else read(torch.device(device_type))


def read_default_timeout(backend: str) -> timedelta:
    """Return torch's timeout of a backend; without the name that of all backends."""
    read = _find(_C10D, "_get_default_timeout")
    found = _C10D.default_pg_timeout if read is None else read(backend)
    return timedelta(seconds=found.total_seconds())


def read_timeout_option(backend: Any) -> timedelta | None:
    """Return the timeout in a backend's options; without it, unknown."""
    try:
        timeout: timedelta | None = _find(getattr(backend, "options", None), "_timeout")
    except RuntimeError:
        # torch 2.15 gives each backend the attribute, and those of other vendors need not fill it.
        return None
    return timeout


def set_timeout(backend: Any, timeout: timedelta) -> None:
    """Set the timeout of a backend; without the private name by the public one."""
    change = _find(backend, "_set_default_timeout") or backend.set_timeout
    change(timeout)


def can_nccl_timeout_change() -> bool:
    """Return whether torch changes the timeout of NCCL's groups with effect."""
    return _find(_C10D, "_set_pg_timeout") is not None


def find_compiled(model: Any) -> Any:
    """Return the model inside a compiled one; without the name the model itself."""
    inner = _find(model, "_orig_mod")
    return model if inner is None else inner


def register_before_loading(module: nn.Module, hook: Callable[..., None]) -> None:
    """Call ``hook(module, state_dict, prefix, ...)`` before a module loads a state.

    Public since torch 2.5. Without either name, names of parameters need the wrapper's ``module.``.
    """
    register = getattr(module, "register_load_state_dict_pre_hook", None)
    if register is not None:
        register(hook)
        return
    register = _find(module, "_register_load_state_dict_pre_hook")
    if register is not None:
        register(hook, with_module=True)


def find_reset(module: nn.Module) -> Callable[[nn.Module], Any] | None:
    """Return the method that initializes a module: a private one of attention layers.

    Without it, ``param_init_fn`` has to initialize them on the meta device.
    """
    private = _find(type(module), "_reset_parameters")
    reset: Callable[[nn.Module], Any] | None = getattr(type(module), "reset_parameters", private)
    return reset


# The base of all batch normalizations; without its name, found by a subclass.
BATCH_NORM: Any = _find(nn.modules.batchnorm, "_BatchNorm") or nn.BatchNorm1d.__base__


class BatchNorm(nn.BatchNorm1d):
    """Batch normalization of inputs with two or more dimensions; without the name, two or three."""

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002 (torch's name)
        if input.dim() < 2:
            raise ValueError(f"expected an input of at least 2 dimensions, got {input.dim()}")


def admit_sync_batch_norm(wrapper_class: _Class) -> _Class:
    """Disable torch's refusal of SyncBatchNorm on the CPU, where ours works.

    Without torch's check nothing refuses it.
    """
    name = "_passing_sync_batchnorm_handle"
    if _find(DistributedDataParallel, name) is not None:
        setattr(wrapper_class, name, lambda *_: None)
    return wrapper_class
