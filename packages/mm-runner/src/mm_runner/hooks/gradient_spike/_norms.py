"""Norms of the gradients of each parameter group, left on the device."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

__all__ = ["group_gradients", "group_norms"]


def group_gradients(optimizer: Optimizer) -> list[list[Tensor]]:
    """Return the gradients by parameter group; of a sharded one the part on this rank."""
    return [
        [_local(one.grad) for one in group["params"] if one.grad is not None]
        for group in optimizer.param_groups
    ]


@torch.no_grad()
def group_norms(optimizer: Optimizer, gradients: list[list[Tensor]]) -> Tensor:
    """Return the norm of each group's gradients, shape ``(groups,)``, in float32.

    Of sharded gradients it is the norm of the whole, for which the ranks exchange these few
    numbers on the device; where parts are replicated too, of all replicas together.
    """
    device = next((one.device for group in gradients for one in group), torch.device("cpu"))
    squares = [
        _norm(group, device).square() if group else torch.zeros((), device=device)
        for group in gradients
    ]
    total = torch.stack(squares)
    if _is_sharded(optimizer):
        dist.all_reduce(total)
    norms = total.sqrt()
    # A fused optimizer takes the loss scale out by itself, in its kernel.
    scale: Any = getattr(optimizer, "grad_scale", None)
    return norms if scale is None else norms / scale


def _norm(group: list[Tensor], device: torch.device) -> Tensor:
    """Return the norm of all tensors of ``group`` together."""
    foreach = getattr(torch, "_foreach_norm", None)
    dense = [one.coalesce().values() if one.is_sparse else one for one in group]
    norms = foreach(dense) if foreach is not None else [one.norm() for one in dense]
    parts = [one.to(device=device, dtype=torch.float32) for one in norms]
    total: Tensor = torch.linalg.vector_norm(torch.stack(parts))
    return total


def _local(gradient: Tensor) -> Tensor:
    part: Any = getattr(gradient, "_local_tensor", None)
    return gradient if part is None else part


def _is_sharded(optimizer: Optimizer) -> bool:
    return any(
        hasattr(one, "full_tensor") for group in optimizer.param_groups for one in group["params"]
    )
