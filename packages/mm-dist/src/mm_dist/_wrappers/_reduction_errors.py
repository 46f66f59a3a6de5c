"""Explain the errors of torch's gradient reducer by the names of parameters."""

import re
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor

from mm_dist._errors import GradientSyncError, MMDistError

_UNFINISHED = "Expected to have finished reduction"
_READY_TWICE = "Expected to mark a variable ready only once"
_GRAPH_CHANGED = "training graph has changed"
_MISSING_INDICES = re.compile(r"indices which did not receive grad for rank \d+: ([\d ]+)")
_ONE_INDEX = re.compile(r"[Pp]arameter (?:at|with) index (\d+)")
_NUM_SHOWN = 20


class ExplainedErrors:
    """Context that raises ``GradientSyncError`` in the place of an error of torch's reducer.

    Args:
        wrapper: The data-parallel wrapper, for its settings.
        names: Names of the parameters that the reducer manages, in its order.
    """

    def __init__(self, wrapper: Any, names: Sequence[str]) -> None:
        self._wrapper = wrapper
        self._names = names

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, RuntimeError) and not isinstance(error, MMDistError):
            explained = _explain(str(error), self._wrapper, self._names)
            if explained is not None:
                raise explained from error


def _explain(text: str, wrapper: Any, names: Sequence[str]) -> GradientSyncError | None:
    """Return the error in the user's words, ``None`` for an error that is not the reducer's."""
    if _UNFINISHED in text:
        missing = _select(names, _MISSING_INDICES.search(text))
        return GradientSyncError(_describe_missing(missing, wrapper), missing) if missing else None
    found = _select(names, _ONE_INDEX.search(text))
    shown = join_names(found) or "a parameter"
    if _READY_TWICE in text:
        message = (
            f"Rank {dist.get_rank()}: the gradient of {shown} was computed more than once in one "
            "step. Activation checkpointing does this where a module is checkpointed more than "
            "once: pass use_reentrant=False to torch.utils.checkpoint, or static_graph=True to "
            "the wrapper if every step has the same graph. The other cause is calling the module, "
            "or a part of it, around the wrapper before this backward."
        )
        return GradientSyncError(message, found)
    if _GRAPH_CHANGED in text:
        message = (
            f"Rank {dist.get_rank()}: {shown} got a gradient, and did not in the first step; "
            "static_graph=True promises the same graph in each step. Use "
            "find_unused_parameters=True instead."
        )
        return GradientSyncError(message, found)
    return None


def check_still_frozen(frozen: Sequence[tuple[str, Tensor]]) -> None:
    """Check that no parameter was unfrozen that the reducer does not average.

    Args:
        frozen: Names and parameters that required no gradient when the model was wrapped.

    Raises:
        GradientSyncError: If one requires gradients by now.
    """
    unfrozen = tuple(name for name, parameter in frozen if parameter.requires_grad)
    if unfrozen:
        raise GradientSyncError(
            f"Rank {dist.get_rank()}: {join_names(unfrozen)} was frozen when the model was wrapped "
            "and requires gradients now, which torch's DistributedDataParallel does not average. "
            "Wrap the model while everything that is ever trained requires gradients, with "
            "find_unused_parameters=True, and freeze it afterwards, as in before_train of a hook.",
            unfrozen,
        )


def _select(names: Sequence[str], match: re.Match[str] | None) -> tuple[str, ...]:
    indices = [int(index) for index in match.group(1).split()] if match else []
    return tuple(names[index] for index in indices if index < len(names))


def _describe_missing(missing: tuple[str, ...], wrapper: Any) -> str:
    start = (
        f"Rank {dist.get_rank()}: in the last backward no gradient reached "
        f"{join_names(missing)}, so the gradients of that step were not averaged over all ranks. "
    )
    if getattr(wrapper, "static_graph", False):
        return start + (
            "static_graph=True promises that each step uses the same parameters, which this one "
            "did not; use find_unused_parameters=True instead."
        )
    if wrapper.find_unused_parameters:
        return start + (
            "find_unused_parameters=True is on, so forward returned something that depends on "
            "them: let the loss use everything that forward returns, or return it detached."
        )
    return start + (
        "If the loss should use them, let it. Else one of: freeze them before wrapping "
        "(requires_grad=False) if they never learn; find_unused_parameters=True if which are used "
        "depends on the batch or the rank; static_graph=True if the same ones stay unused in every "
        "step, on every rank."
    )


def join_names(names: Sequence[str]) -> str:
    """Return the names for a message, the first ones only if there are many."""
    shown = ", ".join(names[:_NUM_SHOWN])
    return f"{shown} and {len(names) - _NUM_SHOWN} more" if len(names) > _NUM_SHOWN else shown
