"""Private names of torch and version differences, each with what happens where it is missing.

No other module of this package reads a private name of torch.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import profiler

_IS_TORCH_2 = hasattr(torch, "compile")
_HAS_IS_COMPILING = hasattr(getattr(torch, "compiler", None), "is_compiling")  # torch 2.3
# Whether ``torch.compile`` is tracing this call; always False before torch 2.3.
is_compiling: Callable[[], bool] = torch.compiler.is_compiling if _HAS_IS_COMPILING else bool


_zero_grad: Any = torch.optim.Optimizer.zero_grad
# Before torch 2.0, zero_grad() fills gradients with zeros.
_is_profiling: Callable[[], bool] | None = (
    getattr(torch.autograd, "_profiler_enabled", None) if _IS_TORCH_2 else None
)


def zero_gradients(optimizer: torch.optim.Optimizer) -> None:
    """Do what ``optimizer.zero_grad()`` does, 5 to 13 microseconds faster without a profiler.

    Without ``_profiler_enabled``, or where ``zero_grad`` is overridden, torch's own is called.
    """
    if (
        is_compiling()  # first: the compiler cannot trace the others
        or _is_profiling is None
        or type(optimizer).zero_grad is not _zero_grad
        or "zero_grad" in vars(optimizer)
        or _is_profiling()
        or getattr(profiler, "_is_profiler_enabled", False)  # of all threads
    ):
        optimizer.zero_grad()
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                parameter.grad = None


def current_scale(scaler: Any) -> Tensor | None:
    """Return the live scale of a ``GradScaler``, or None before its first loss.

    Without ``_get_scale_async`` the public ``get_scale`` is read, which waits for the device.
    """
    read = getattr(scaler, "_get_scale_async", None)
    scale: Tensor | None = torch.tensor(scaler.get_scale()) if read is None else read()
    return scale


def can_skip_in_kernel(scaler: Any, optimizer: torch.optim.Optimizer) -> bool:
    """Whether a fused step may decide on the device: its overflow flag has to be readable."""
    return _IS_TORCH_2 and is_fused(optimizer) and hasattr(scaler, "_found_inf_per_device")


def found_overflow(scaler: Any, optimizer: torch.optim.Optimizer) -> Tensor:
    """Return whether gradients overflowed, 0-d, on the device; to be read before ``update``."""
    first, *others = scaler._found_inf_per_device(optimizer).values()  # noqa: SLF001
    total = sum((found.to(first.device, non_blocking=True) for found in others), first)
    overflow: Tensor = total.reshape(()) != 0
    return overflow


def is_fused(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimizer's kernel can unscale and skip. Without the mark: no."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def mark_fused(optimizer: Any, *, value: bool) -> None:
    """Set the mark that makes a ``GradScaler`` leave unscaling and skipping to the kernel."""
    optimizer._step_supports_amp_scaling = value  # noqa: SLF001


def foreach_norm(tensors: list[Tensor]) -> list[Tensor]:
    """Return the norm of each tensor; without ``_foreach_norm``, one by one."""
    function = getattr(torch, "_foreach_norm", None)
    if function is None:
        return [torch.linalg.vector_norm(tensor) for tensor in tensors]
    return list(function(tensors))


def foreach_mul_(tensors: list[Any], factor: float | Tensor) -> None:
    """Multiply each tensor in place; one by one without ``_foreach_mul_`` (or its torch 2.1)."""
    function = getattr(torch, "_foreach_mul_", None)
    takes_tensor = hasattr(getattr(torch.ops.aten, "_foreach_mul_", None), "Tensor")
    if function is not None and (takes_tensor or not isinstance(factor, Tensor)):
        function(tensors, factor)
        return
    for tensor in tensors:
        tensor.mul_(factor)


def versions_of(optimizer: torch.optim.Optimizer, parameter: Tensor) -> list[int]:
    """Return counters that change with a step: of the state, or of the parameter without one.

    Without ``_version`` they are 0, and no step is noticed.
    """
    state = optimizer.state.get(parameter) or {"": parameter}
    return [getattr(one, "_version", 0) for one in state.values() if isinstance(one, Tensor)]


def stored_values(gradient: Tensor) -> Tensor:
    """Return the live values of a sparse gradient; without ``_values``, those of a copy."""
    values: Any = getattr(gradient, "_values", None)
    found: Tensor = gradient.coalesce().values() if values is None else values()
    return found


def is_compiled_in_place(module: nn.Module) -> bool:
    """Whether ``module.compile()`` was called; without the name: no."""
    return getattr(module, "_compiled_call_impl", None) is not None
