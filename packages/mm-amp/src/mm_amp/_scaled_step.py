"""Step through torch's scaler and learn, without waiting for the device, whether it stepped."""

from collections.abc import Mapping
from inspect import signature
from typing import Any

import torch
from torch import Tensor


def scaled_step(
    scaler: Any, optimizer: torch.optim.Optimizer, kwargs: Mapping[str, Any]
) -> tuple[bool | Tensor, bool | Tensor]:
    """Call ``scaler.step(optimizer)`` and tell what it did.

    Most optimizers are called by the scaler only when no gradient overflowed (torch itself waits
    for the device to know that), so it is enough to watch whether the call comes. Fused ones are
    always called and skip inside their kernel; for them the answer stays on the device.

    Returns:
        ``(stepped, skipped)``: bools, or 0-d bool tensors for an optimizer that skips by itself.
    """
    if not skips_by_itself(optimizer):
        stepped = _step_watched(scaler, optimizer, kwargs)
    elif _can_step_fused(scaler, optimizer) and not _lacks_momentum(optimizer):
        _step_fused(scaler, optimizer, kwargs)
        overflow = _found_inf(scaler, optimizer)
        return overflow == 0, overflow != 0
    else:
        stepped = _step_unscaled(scaler, optimizer, kwargs)
    return stepped, not stepped


def skips_by_itself(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimizer handles the loss scale in its own kernel: torch's mark for fused."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def unscales_by_itself(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it also insists on unscaling: fused optimizers before torch 2.0, given the scaler.

    Gradients that ``unscale_`` has already divided would be divided a second time.
    """
    return skips_by_itself(optimizer) and "grad_scaler" in signature(optimizer.step).parameters


def _can_step_fused(scaler: Any, optimizer: torch.optim.Optimizer) -> bool:
    """Whether the two agree on how: a device's own scaler still hands itself to ``step``.

    That of ``torch_npu`` does, and torch's optimizers do not take it since 2.0.
    """
    is_torchs: bool = type(scaler).step.__module__.startswith("torch.")
    return is_torchs or unscales_by_itself(optimizer)


def _lacks_momentum(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it is torch's SGD before its first step with momentum.

    Its kernel leaves momentum as uninitialized memory where it skips that one (torch 2.3 to 2.13).
    """
    if not isinstance(optimizer, torch.optim.SGD):
        return False
    groups = [group["params"] for group in optimizer.param_groups if group["momentum"]]
    firsts = [next((one for one in params if one.grad is not None), None) for params in groups]
    state = optimizer.state
    return any(
        one is not None and state.get(one, {}).get("momentum_buffer") is None for one in firsts
    )


def _step_unscaled(
    scaler: Any, optimizer: torch.optim.Optimizer, kwargs: Mapping[str, Any]
) -> bool:
    """Let the scaler unscale and skip for a fused optimizer, as it does for any other."""
    fused: Any = optimizer
    fused._step_supports_amp_scaling = False  # noqa: SLF001 - torch's mark
    try:
        return _step_watched(scaler, optimizer, kwargs)
    finally:
        fused._step_supports_amp_scaling = True  # noqa: SLF001


def _step_fused(scaler: Any, optimizer: torch.optim.Optimizer, kwargs: Mapping[str, Any]) -> None:
    try:
        scaler.step(optimizer, **kwargs)
    except BaseException:
        # The scaler takes these away after a step only, and would multiply the next with them.
        for name in ("grad_scale", "found_inf"):
            vars(optimizer).pop(name, None)
        raise


def step_fused_unless(is_bad: Tensor, optimizer: Any, kwargs: Mapping[str, Any]) -> None:
    """Step a fused optimizer whose own kernel leaves the step out if ``is_bad``."""
    optimizer.found_inf = is_bad.float()
    try:
        optimizer.step(**kwargs)
    finally:
        del optimizer.found_inf


def _step_watched(scaler: Any, optimizer: torch.optim.Optimizer, kwargs: Mapping[str, Any]) -> bool:
    """Call ``scaler.step`` and tell whether it called ``optimizer.step``."""
    # Optimizer hooks would do from torch 2.0 on, but break the graph of a compiled step.
    is_called = False
    original = optimizer.step
    is_replaced = "step" in optimizer.__dict__  # a scheduler or torch.compile put its own there

    # Nothing looks at this function's name or signature while the scaler holds it.
    def step(*args: Any, **kwargs: Any) -> Any:
        nonlocal is_called
        is_called = True
        return original(*args, **kwargs)

    optimizer.step = step  # type: ignore[method-assign]
    try:
        scaler.step(optimizer, **kwargs)
    finally:
        if is_replaced:
            optimizer.step = original  # type: ignore[method-assign]
        else:
            del optimizer.step
    return is_called


def _found_inf(scaler: Any, optimizer: torch.optim.Optimizer) -> Tensor:
    """Return 0 or more, 0-d: how many devices saw an overflow. Must precede ``update``."""
    # Private, but the only name for it, and the same from torch 1.13 to 2.15.
    per_device = scaler._found_inf_per_device(optimizer)  # noqa: SLF001
    first, *others = per_device.values()
    total: Tensor = sum((found.to(first.device, non_blocking=True) for found in others), first)
    return total.reshape(())
