"""torch's fused kernels for the CPU, and what the rules of ours make with them in one pass.

=================  =====================  ==========================================================
Rule               Kernel                 What it makes at once
=================  =====================  ==========================================================
BertAdam           AdamW                  all but the clipping (``adamw_step``)
RMSprop            Adam, first beta 0     all, without momentum and mean (``rmsprop_step``)
RMSprop, -TF       SGD                    momentum and parameter (``momentum_step``)
Lamb, AdamP        Adam, parameter zeros  the moments and the direction (``adam_direction``)
=================  =====================  ==========================================================

A kernel takes tensors that lie in memory alike, which ``fits`` looks at; a gradient is copied.
Adam's count of steps is infinite here, where both bias corrections are one.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ._operands import Operands, local


@cache
def has_fused_kernels() -> bool:
    """Say whether this torch has the fused kernels for the CPU: from 2.4 on."""
    # torch 2.3 has the operator, for accelerators only.
    has_kernel: bool = hasattr(
        torch, "_fused_sgd_"
    ) and torch._C._dispatch_has_kernel_for_dispatch_key(  # noqa: SLF001 - it has no public name
        "aten::_fused_sgd_", "CPU"
    )
    return has_kernel


def mark_changed(params: Sequence[Tensor]) -> None:
    """Tell autograd that the kernels changed ``params``, which they leave out.

    Without it, a backward that needs the old values would take the new ones instead of raising.
    """
    if _marks_many():
        torch.autograd.graph.increment_version(params)
    else:
        for p in params:
            torch.autograd.graph.increment_version(p)


@cache
def _marks_many() -> bool:
    # Before torch 2.6 it takes one tensor; a call for each of many takes as long as their kernel.
    try:
        torch.autograd.graph.increment_version([])
    except (RuntimeError, TypeError):
        return False
    return True


def can_fuse(p: Tensor) -> bool:
    """Say whether rules may use the kernels for operands made of ``p``."""
    plain = type(local(p)) in {Tensor, torch.nn.Parameter}
    return plain and p.device.type == "cpu" and has_fused_kernels()


def fits(operands: Operands, options: Mapping[str, Any]) -> bool:
    """Say whether the kernels, which walk through memory, are right for a block of operands.

    They are not for one that is cut out of a stack, as when the number of threads was lowered.
    """
    written = (operands.p, *operands.state.values())
    return bool(options["fused"]) and all(tensor.is_contiguous() for tensor in written)


def adamw_step(
    operands: Operands, decays: tuple[float, float], eps: float, lr: Any, weight_decay: float
) -> None:
    """Let the moments follow the gradient, and ``p -= lr * (m / (sqrt(v) + eps) + decay * p)``."""
    p, gradient, state = operands
    numbers = {"lr": float(lr), "eps": eps, "weight_decay": weight_decay}
    _run_adam(
        torch._fused_adamw_, p, gradient, state["exp_avg"], state["exp_avg_sq"], decays, numbers
    )
    torch.autograd.graph.increment_version(p)


def rmsprop_step(
    operands: Operands, spare: Tensor, decay: float, eps: float, lr: Any, weight_decay: float
) -> None:
    """Let the mean square ``s`` follow ``g``, and ``p -= lr * g / (sqrt(s) + eps)``."""
    p, gradient, state = operands
    numbers = {"lr": float(lr), "eps": eps, "weight_decay": weight_decay}
    spare.zero_()  # it becomes g + 0 * (what it was): no infinity may be left there
    _run_adam(torch._fused_adam_, p, gradient, spare, state["square_avg"], (0.0, decay), numbers)
    torch.autograd.graph.increment_version(p)


def adam_direction(
    gradient: Tensor,
    state: Mapping[str, Tensor],
    decays: tuple[float, float],
    eps: float,
    out: Tensor,
    root_correction: float = 1.0,
) -> None:
    """Let the moments follow the gradient, and ``out = m / (sqrt(v) / root_correction + eps)``."""
    numbers = {"lr": -root_correction, "eps": eps * root_correction, "weight_decay": 0.0}
    moments = state["exp_avg"], state["exp_avg_sq"]
    _run_adam(torch._fused_adam_, out.zero_(), gradient, *moments, decays, numbers)


def momentum_step(
    p: Tensor, direction: Tensor, buffer: Tensor, momentum: float, weight: Any, lr: Any
) -> None:
    """Make ``buffer = momentum * buffer + weight * direction``, and ``p -= lr * buffer``."""
    torch._fused_sgd_(
        [p],
        [direction],
        [buffer],
        weight_decay=0.0,
        momentum=momentum,
        lr=float(lr),
        dampening=1 - float(weight),
        nesterov=False,
        maximize=False,
        is_first_step=False,
    )
    torch.autograd.graph.increment_version(p)


def _run_adam(
    kernel: Any,
    p: Tensor,
    gradient: Tensor,
    mean: Tensor,
    mean_square: Tensor,
    decays: tuple[float, float],
    numbers: Mapping[str, float],
) -> None:
    beta1, beta2 = decays
    kernel(
        [p],
        [gradient.contiguous()],
        [mean],
        [mean_square],
        [],
        [torch.tensor(math.inf, device="cpu")],  # whatever the default device is
        beta1=beta1,
        beta2=beta2,
        amsgrad=False,
        maximize=False,
        **numbers,
    )
