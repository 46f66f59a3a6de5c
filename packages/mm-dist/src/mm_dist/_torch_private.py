"""torch's private names, each with what happens where this torch lacks it.

Everything else in this package reads them through these functions.
"""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

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
    """Map the name of each group to its ranks, as numbered among all; without it, empty."""
    found = _find(_C10D, "_pg_group_ranks")
    members = list(found.items()) if isinstance(found, dict) else []
    return {group_name(group): sorted(ranks) for group, ranks in members if group_name(group)}


def default_store() -> Any | None:
    """Return the store of the default group; without it there is no hang report."""
    read = _find(_C10D, "_get_default_store")
    return None if read is None else read()


def find_abort() -> Callable[[], None] | None:
    """Return what breaks the connections of all groups; without it they end with the process."""
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


def read_timeout(options: Any) -> timedelta | None:
    """Return the timeout in a backend's options; without it, unknown."""
    timeout: timedelta | None = _find(options, "_timeout")
    return timeout


def set_timeout(backend: Any, timeout: timedelta) -> None:
    """Give a backend another timeout; without the private name by the public one."""
    change = _find(backend, "_set_default_timeout") or backend.set_timeout
    change(timeout)


def can_nccl_timeout_change() -> bool:
    """Return whether torch changes the timeout of NCCL's groups with effect."""
    return _find(_C10D, "_set_pg_timeout") is not None


def flight_recorders() -> Iterator[Callable[..., bytes]]:
    """Yield what dumps torch's flight recorders: gloo's and, by its former name, NCCL's."""
    bindings = _find(torch._C, "_distributed_c10d")  # noqa: SLF001
    for name in ("_dump_fr_trace", "_dump_nccl_trace"):
        dump = _find(bindings, name)
        if dump is not None:
            yield dump


def has_common_flight_recorder() -> bool:
    """Return whether the recorder is that of all backends (torch 2.9 and newer)."""
    return _find(_find(torch._C, "_distributed_c10d"), "_dump_fr_trace") is not None  # noqa: SLF001


def is_gradient_accumulated(parameter: Tensor) -> bool:
    """Return whether backward is about to add to ``.grad``; to be called in a parameter's hook.

    ``autograd.grad`` does not add. Without the name: ``False``, so that nothing is guarded.
    """
    will_execute = _find(torch._C, "_will_engine_execute_node")  # noqa: SLF001
    if will_execute is None:
        return False
    read_node = _find(torch._C, "_current_autograd_node")  # noqa: SLF001 (since torch 2.0)
    if read_node is not None:
        node = read_node()
    else:
        with torch.enable_grad():
            view: Any = parameter.expand_as(parameter)
        node = view.grad_fn.next_functions[0][0]
    try:
        return bool(will_execute(node))
    except RuntimeError:  # its answer for a leaf whose gradient is only returned
        return False


def find_reducer_check(wrapper: nn.Module) -> Callable[[], None]:
    """Return what raises if a wrapper's gradients were not all averaged (torch 2.1 and newer).

    Without it an unfinished reduction shows in the next forward.
    """
    check: Callable[[], None] | None = _find(
        getattr(wrapper, "reducer", None), "_check_reducer_finalized"
    )
    return _do_nothing if check is None else check


def _do_nothing() -> None:
    """Stand in for a check that this torch does not have."""


def is_static_graph_learned(wrapper: Any) -> bool:
    """Return whether torch has learned a wrapper's static graph, in the first backward.

    Without the name (torch before 2.1): after the first forward pass that synchronises.
    """
    is_learned = _find(wrapper, "_static_graph_delay_allreduce_enqueued")
    return int(wrapper.num_iterations) > 1 if is_learned is None else bool(is_learned)


def find_compiled(model: Any) -> Any:
    """Return what ``torch.compile`` compiled; without the name the model itself."""
    inner = _find(model, "_orig_mod")
    return model if inner is None else inner
