"""Step through torch's scaler and learn, without waiting for the device, whether it stepped."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from typing import Any

import torch
from torch import Tensor


def scaled_step(
    scaler: Any, optimizer: torch.optim.Optimizer, **kwargs: Any
) -> tuple[bool | Tensor, bool | Tensor]:
    """Call ``scaler.step(optimizer)`` and tell what it did.

    Most optimizers are called by the scaler only when no gradient overflowed (torch itself waits
    for the device to know that), so it is enough to watch whether the call comes. Fused ones are
    always called and skip inside their kernel; for them the answer stays on the device.

    Returns:
        ``(stepped, skipped)``: bools, or 0-d bool tensors for an optimizer that skips by itself.
    """
    with _watch_step(optimizer) as watch:
        scaler.step(optimizer, **kwargs)
    if not skips_by_itself(optimizer):
        return watch.called, not watch.called
    overflow = _found_inf(scaler, optimizer)
    return overflow == 0, overflow != 0


def skips_by_itself(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimizer handles the loss scale in its own kernel: torch's mark for fused."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def unscales_by_itself(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it also insists on unscaling: fused optimizers before torch 2.0, given the scaler.

    Gradients that ``unscale_`` has already divided would be divided a second time.
    """
    return skips_by_itself(optimizer) and "grad_scaler" in signature(optimizer.step).parameters


@dataclass
class _StepWatch:
    called: bool = False


@contextmanager
def _watch_step(optimizer: torch.optim.Optimizer) -> Iterator[_StepWatch]:
    # Optimizer hooks would do from torch 2.0 on, but break the graph of a compiled step.
    watch = _StepWatch()
    original = optimizer.step
    is_replaced = "step" in vars(optimizer)  # a scheduler or torch.compile put its own there

    @wraps(original)
    def step(*args: Any, **kwargs: Any) -> Any:
        watch.called = True
        return original(*args, **kwargs)

    optimizer.step = step  # type: ignore[method-assign]
    try:
        yield watch
    finally:
        if is_replaced:
            optimizer.step = original  # type: ignore[method-assign]
        else:
            del optimizer.step


def _found_inf(scaler: Any, optimizer: torch.optim.Optimizer) -> Tensor:
    """Return 0 or more, 0-d: how many devices saw an overflow. Must precede ``update``."""
    # Private, but the only name for it, and the same from torch 1.13 to 2.13.
    per_device = scaler._found_inf_per_device(optimizer)  # noqa: SLF001
    first, *others = per_device.values()
    total: Tensor = sum((found.to(first.device, non_blocking=True) for found in others), first)
    return total.reshape(())
