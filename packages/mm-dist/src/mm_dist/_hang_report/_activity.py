"""Tell from a Python stack whether a rank waits for others, and in what."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mm_dist._hang_report._paths import find_origin
from mm_dist._hang_report._stack import Frame, library_frames, read_source

_POINT_TO_POINT = frozenset(
    {
        "batch_isend_irecv",
        "irecv",
        "isend",
        "recv",
        "recv_object_list",
        "send",
        "send_object_list",
    }
)
# What users call by name; also what torch's own layers call, under names of several versions.
_COLLECTIVES = frozenset(
    {
        "_all_gather_base",
        "_reduce_scatter_base",
        "all_gather",
        "all_gather_coalesced",
        "all_gather_into_tensor",
        "all_gather_object",
        "all_gather_single",
        "all_reduce",
        "all_reduce_coalesced",
        "all_reduce_dict",
        "all_reduce_params",
        "all_to_all",
        "all_to_all_single",
        "barrier",
        "broadcast",
        "broadcast_object_list",
        "collect_results",
        "collect_results_cpu",
        "collect_results_gpu",
        "gather",
        "gather_object",
        "init_device_mesh",
        "monitored_barrier",
        "new_group",
        "new_subgroups",
        "new_subgroups_by_enumeration",
        "reduce",
        "reduce_scatter",
        "reduce_scatter_single",
        "reduce_scatter_tensor",
        "scatter",
        "scatter_object_list",
        "split_group",
        "sync_random_seed",
    }
)
# What torch does not count among a group's collectives.
_UNCOUNTED = frozenset(
    {
        "init_device_mesh",
        "monitored_barrier",
        "new_group",
        "new_subgroups",
        "new_subgroups_by_enumeration",
        "split_group",
    }
)
# Where C++ waits below a call that is no collective by name: part of the path, words for it.
_LAYERS = (
    ("torch/nn/parallel/distributed.py", "DistributedDataParallel"),
    ("torch/distributed/fsdp", "FSDP"),
    ("torch/distributed/_composable", "FSDP"),
    ("torch/distributed/checkpoint", "distributed checkpoint"),
    ("torch/_tensor.py", "backward"),
    ("torch/autograd", "backward"),
    ("torch/distributed/utils.py", "torch.distributed"),
)


class Activity(NamedTuple):
    """What a rank does, as far as its stack tells.

    Attributes:
        operation: The collective or layer of torch that it is in; empty if none.
        is_collective: Whether that is certainly a wait for other ranks; a backward pass may be.
        is_point_to_point: Whether it sends to, or receives from, one rank.
        is_counted: Whether the collective has a number among those of its group.
    """

    operation: str
    is_collective: bool
    is_point_to_point: bool
    is_counted: bool = False


def find_activity(stack: Sequence[Frame]) -> Activity:
    """Return what a stack is in, below the user's innermost call."""
    inner = [
        frame for frame in library_frames(stack) if find_origin(frame.file) in ("torch", "own")
    ]
    # The outermost name is the one that the user wrote: all_gather_object, not its all_gather.
    for frame in reversed(inner):
        if frame.function in _POINT_TO_POINT:
            return Activity(frame.function, is_collective=False, is_point_to_point=True)
        if frame.function in _COLLECTIVES:
            is_counted = frame.function not in _UNCOUNTED
            return Activity(frame.function, True, False, is_counted)  # noqa: FBT003
    for frame in inner:
        for part, words in _LAYERS:
            if part in Path(frame.file).as_posix():
                return Activity(words, is_collective=False, is_point_to_point=False)
    return Activity(_find_wait(stack), is_collective=False, is_point_to_point=False)


def _find_wait(stack: Sequence[Frame]) -> str:
    if not stack:
        return ""
    innermost = stack[0]
    if innermost.function == "synchronize" and find_origin(innermost.file) == "torch":
        return "synchronize"
    # The handle of an asynchronous collective waits in C++, right below the user's line.
    is_users = find_origin(innermost.file) == "user"
    return "wait" if is_users and ".wait(" in read_source(innermost) else ""
