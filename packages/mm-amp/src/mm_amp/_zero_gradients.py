"""Zero the gradients in as little time as can be."""

import inspect
from collections.abc import Callable

import torch

from ._compiling import is_compiling

_TORCHS_OWN = torch.optim.Optimizer.zero_grad
# From torch 2.0 on; before, they are filled with zeros.
_DROPS_BY_DEFAULT = inspect.signature(_TORCHS_OWN).parameters["set_to_none"].default is True
_is_profiling: Callable[[], bool] = torch.autograd._profiler_enabled  # type: ignore[attr-defined] # noqa: SLF001


def zero_gradients(optimizer: torch.optim.Optimizer) -> None:
    """Do what ``optimizer.zero_grad()`` does.

    torch's own first tells profilers and the compiler of itself, which takes longer than the rest.
    Where none is listening it is left out.
    """
    if (
        not _DROPS_BY_DEFAULT
        or type(optimizer).zero_grad is not _TORCHS_OWN
        or "zero_grad" in vars(optimizer)
        or is_compiling()  # first: the compiler does not know the next
        or _is_profiling()
    ):
        optimizer.zero_grad()
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None
