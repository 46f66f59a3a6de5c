"""The norm of gradients that are spread over ranks (DTensor), some or all of them."""

import math
from typing import Any

import torch
from torch import Tensor, nn

_PLAIN_TYPES = {nn.Parameter, Tensor}


def total_norm_of_sharded(gradients: list[Any], norm_type: float) -> Tensor:
    """Return the norm of all gradients as one vector: a plain 0-d tensor, equal on all ranks.

    torch's own cannot mix sharded and whole gradients, nor several meshes, and fails for the
    infinite norm where a rank's part is empty. Here one scalar per mesh and layout is exchanged.

    Args:
        gradients: Of any shapes; each a DTensor or a plain tensor that is whole on every rank.
        norm_type: Above 0; may be infinite.
    """
    by_layout: dict[Any, list[Any]] = {}
    for gradient in gradients:
        layout = getattr(gradient, "device_mesh", None), getattr(gradient, "placements", None)
        by_layout.setdefault(layout, []).append(gradient)
    norms = [_norm_over_ranks(group, norm_type, *key) for key, group in by_layout.items()]
    first_device = norms[0].device
    stacked = torch.stack([norm.to(first_device, non_blocking=True) for norm in norms])
    total: Tensor = torch.linalg.vector_norm(stacked, norm_type)
    return total


def are_whole(parameters: list[Tensor]) -> bool:
    """Whether no parameter is a DTensor, whose gradient is one too."""
    return set(map(type, parameters)) <= _PLAIN_TYPES


def local_part(gradient: Any) -> Tensor:
    """Return what of a gradient is on this rank; live."""
    part: Tensor = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    return part


def _norm_over_ranks(group: list[Any], norm_type: float, mesh: Any, placements: Any) -> Tensor:
    if mesh is None:
        return _norm_here(group, norm_type)
    if any(placement.is_partial() for placement in placements):  # a sum that is still to be made
        group = [gradient.full_tensor() for gradient in group]
        return _norm_here(group, norm_type)
    from torch.distributed.tensor import DTensor, Partial, Replicate  # noqa: PLC0415 - new torch

    here = _norm_here([local_part(gradient) for gradient in group], norm_type)
    # What every rank has counts once; parts of different ranks add up.
    is_infinite = math.isinf(norm_type)
    reduction = Partial("max" if is_infinite else "sum")
    reductions = [reduction if p.is_shard() else Replicate() for p in placements]
    value = here if is_infinite else here**norm_type
    combined = DTensor.from_local(value, mesh, reductions, run_check=False).full_tensor()
    return combined if is_infinite else combined ** (1 / norm_type)


def _norm_here(tensors: list[Tensor], norm_type: float) -> Tensor:
    # The infinite norm of nothing is an error in torch; 0 is right for every norm.
    norms = [torch.linalg.vector_norm(tensor, norm_type) for tensor in tensors if tensor.numel()]
    if not norms:
        return torch.zeros((), device=tensors[0].device, dtype=tensors[0].dtype)
    total: Tensor = torch.linalg.vector_norm(torch.stack(norms), norm_type)
    return total
