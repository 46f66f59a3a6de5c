"""Zero the gradients in as little time as can be."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import profiler

from ._compiling import is_compiling

_is_profiling_here: Callable[[], bool] = torch.autograd._profiler_enabled  # type: ignore[attr-defined] # noqa: SLF001


def _drops_by_default(zero_grad: Any) -> bool:
    """Tell whether ``zero_grad`` is torch's, of 2.0 or later: before, it fills with zeros."""
    # Whoever has replaced it wants to be called.
    is_torchs = getattr(zero_grad, "__globals__", {}).get("__name__", "").startswith("torch.")
    return is_torchs and inspect.signature(zero_grad).parameters["set_to_none"].default is True


_TORCHS_OWN: Any = torch.optim.Optimizer.zero_grad
_DROPS = _drops_by_default(_TORCHS_OWN)


def zero_gradients(optimizer: torch.optim.Optimizer) -> None:
    """Do what ``optimizer.zero_grad()`` does.

    torch's own first tells profilers and the compiler of itself, which takes longer than the rest.
    It is left out while no profiler runs. An observer of execution traces without a profiler does
    not see it: nothing tells of those.
    """
    if (
        is_compiling()  # first: the compiler does not know the others
        or not _DROPS
        or getattr(type(optimizer), "zero_grad", None) is not _TORCHS_OWN
        or "zero_grad" in vars(optimizer)
        or _is_profiling_here()
        or getattr(profiler, "_is_profiler_enabled", False)  # of all threads
    ):
        optimizer.zero_grad()
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                parameter.grad = None
