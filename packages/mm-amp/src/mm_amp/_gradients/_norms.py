"""Norms of gradients: of each one, and of all together, also where they are sharded."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from mm_amp._gradients._sync import AveragingRanks
from mm_amp._model._parameters import first_fsdp_modules, local_part
from mm_amp._torch_private import foreach_norm, stored_values

_PLAIN_TYPES = {nn.Parameter, Tensor}


def are_whole(parameters: list[Tensor]) -> bool:
    """Whether no parameter is a DTensor, whose gradient is one too."""
    return set(map(type, parameters)) <= _PLAIN_TYPES


def dense_part(gradient: Any) -> Tensor:
    """Return the values of a gradient that are stored on this rank; live and dense."""
    part = local_part(gradient)
    return stored_values(part) if part.is_sparse else part


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
        for (index, _), norm in zip(here, foreach_norm(parts), strict=True):
            norms[index] = norm.to(device, torch.float32, non_blocking=True)
        nothing = torch.zeros((), device=device)
        return torch.stack([nothing if norm is None else norm for norm in norms])


def norms_on_all_ranks(norms: Tensor, parameters: Iterable[Tensor], model: Any) -> Tensor:
    """Add up norms over the ranks of a sharded model, so that all ranks see the same bad ones.

    Other gradients are equal on all ranks already, or private to this one: nothing is exchanged.
    All ranks must call this together.

    Args:
        norms: Result of ``local_norms(parameters)``.
        parameters: Parameters of the optimizer, the same on all ranks.
        model: The model, or ``None``.
    """
    is_sharded = any(hasattr(parameter, "device_mesh") for parameter in parameters)
    if model is None or not (is_sharded or first_fsdp_modules(model)):
        return norms
    return AveragingRanks(model).all_reduce(norms.clone())


def total_norm_of_sharded(gradients: list[Any], norm_type: float) -> Tensor:
    """Return the norm of all gradients as one vector: a plain 0-d tensor, equal on all ranks.

    torch's own cannot mix sharded and whole gradients, nor several meshes, and fails for the
    infinite norm where a rank's part is empty. Here one scalar per mesh and layout is exchanged.

    Args:
        gradients: Each a DTensor, or a plain tensor that is whole on every rank.
        norm_type: Above 0; may be infinite.
    """
    by_layout: dict[Any, list[Any]] = {}
    for gradient in gradients:
        layout = getattr(gradient, "device_mesh", None), getattr(gradient, "placements", None)
        by_layout.setdefault(layout, []).append(gradient)
    norms = [_norm_over_ranks(group, norm_type, *key) for key, group in by_layout.items()]
    stacked = torch.stack([norm.to(norms[0].device, non_blocking=True) for norm in norms])
    total: Tensor = torch.linalg.vector_norm(stacked, norm_type)
    return total


def _norm_over_ranks(group: list[Any], norm_type: float, mesh: Any, placements: Any) -> Tensor:
    if mesh is None:
        return _norm_here(group, norm_type)
    if any(placement.is_partial() for placement in placements):  # a sum that is not reduced yet
        return _norm_here([gradient.full_tensor() for gradient in group], norm_type)
    from torch.distributed.tensor import DTensor, Partial, Replicate  # noqa: PLC0415 - new torch

    here = _norm_here([local_part(gradient) for gradient in group], norm_type)
    # Replicated values count once; shards add up.
    is_infinite = math.isinf(norm_type)
    reduction = Partial("max" if is_infinite else "sum")
    reductions = [reduction if p.is_shard() else Replicate() for p in placements]
    value = here if is_infinite else here**norm_type
    combined = DTensor.from_local(value, mesh, reductions, run_check=False).full_tensor()
    return combined if is_infinite else combined ** (1 / norm_type)


def _norm_here(tensors: list[Tensor], norm_type: float) -> Tensor:
    # The infinite norm of an empty tensor is an error in torch; 0 is right for every norm.
    norms = [torch.linalg.vector_norm(tensor, norm_type) for tensor in tensors if tensor.numel()]
    if not norms:
        return torch.zeros((), device=tensors[0].device, dtype=tensors[0].dtype)
    total: Tensor = torch.linalg.vector_norm(torch.stack(norms), norm_type)
    return total
