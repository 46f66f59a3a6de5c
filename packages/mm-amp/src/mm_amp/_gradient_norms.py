"""The norm of each gradient, to tell which ones are not finite."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ._averaging_ranks import AveragingRanks
from ._first_fsdp import contains_first_fsdp
from ._sharded_norm import local_part


def dense_part(gradient: Any) -> Tensor:
    """Return what of a gradient is stored on this rank: live, and not sparse."""
    part = local_part(gradient)
    return part._values() if part.is_sparse else part  # noqa: SLF001 - values() needs a copy first


def local_norms(parameters: Iterable[Tensor]) -> Tensor:
    """Return the norm of each parameter's gradient on this rank, without waiting for the device.

    Returns:
        Shape ``(n,)``, float32, on the device of the first gradient; 0 where there is none.
    """
    norms: list[Tensor | None] = [None] * len(listed := list(parameters))
    here = [(i, dense_part(p.grad)) for i, p in enumerate(listed) if p.grad is not None]
    here = [(index, part) for index, part in here if part.numel()]
    if not here:
        return torch.zeros(len(norms), device=listed[0].device if listed else None)
    device = here[0][1].device
    with torch.no_grad():
        # float16 would overflow in the sum of squares.
        parts = [part.float() if part.dtype == torch.float16 else part for _, part in here]
        for (index, _), norm in zip(here, torch._foreach_norm(parts), strict=True):  # noqa: SLF001
            norms[index] = norm.to(device, torch.float32, non_blocking=True)
        nothing = torch.zeros((), device=device)
        return torch.stack([nothing if norm is None else norm for norm in norms])


def norms_on_all_ranks(norms: Tensor, parameters: Iterable[Tensor], model: Any) -> Tensor:
    """Let a norm that is not finite on one rank of a sharded model be so on all of them.

    Sharded gradients are different parts on different ranks. Those of DDP are equal already, and
    of others nobody knows: nothing is exchanged then. Ranks must call this together.

    Args:
        norms: What ``local_norms(parameters)`` returned.
        parameters: Those of the optimizer, the same on all ranks.
        model: The model, or ``None``.
    """
    is_sharded = any(hasattr(parameter, "device_mesh") for parameter in parameters)
    if model is None or not (is_sharded or contains_first_fsdp(model)):
        return norms
    return AveragingRanks(model).add_up(norms.clone())
