"""Norms of gradients, also where they are sharded, and scaling in place."""

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import utils as nn_utils

from mm_amp._gradients._sync import AveragingRanks
from mm_amp._torch_private import foreach_mul_, foreach_norm, stored_values

_get_total_norm = getattr(nn_utils, "get_total_norm", None)  # torch 2.6


def are_whole(gradients: list[Any]) -> bool:
    """Whether no gradient is a DTensor."""
    return set(map(type, gradients)) <= {Tensor}


def local_part(tensor: Any) -> Tensor:
    """Return the part of a tensor that is on this rank; live."""
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def scale_gradients(gradients: list[Any], factor: Tensor) -> None:
    """Multiply gradients in place, of sharded ones the part on this rank."""
    if not are_whole(gradients):
        gradients = [local_part(gradient) for gradient in gradients]
    by_device: dict[torch.device, list[Tensor]] = {}
    for gradient in gradients:
        by_device.setdefault(gradient.device, []).append(gradient)
    for device, there in by_device.items():
        foreach_mul_(there, factor.to(device, non_blocking=True))


def local_norms(parameters: list[Tensor]) -> Tensor:
    """Return the norm of each parameter's gradient on this rank, without waiting for the device.

    The shape is ``(n,)``, in float32, on the device of the first parameter; 0 without a gradient.
    """
    if not parameters:
        return torch.zeros(0)
    device = parameters[0].device
    parts = []
    for parameter in parameters:
        part = torch.zeros((), device=device) if parameter.grad is None else parameter.grad.detach()
        part = local_part(part)
        part = stored_values(part) if part.is_sparse else part
        # float16 would overflow in the sum of squares, and an empty part has no norm on CUDA.
        part = part.float() if part.dtype == torch.float16 else part
        parts.append(part if part.numel() else part.new_zeros(()))
    norms = [norm.to(device, torch.float32, non_blocking=True) for norm in foreach_norm(parts)]
    return torch.stack(norms)


def norms_on_all_ranks(norms: Tensor, parameters: list[Tensor], model: Any) -> Tensor:
    """Add up norms over the ranks of a sharded model, so that all ranks see the same bad ones.

    Other gradients are equal on all ranks already, or private to this one: nothing is exchanged.
    All ranks must call this together, with the result of ``local_norms(parameters)``.
    """
    if model is None or not any(hasattr(one, "device_mesh") for one in parameters):
        return norms
    return AveragingRanks(model).all_reduce(norms.clone())


def total_norm(gradients: list[Any], norm_type: float) -> Tensor:
    """Return the norm of all gradients as one vector: a plain 0-d tensor, equal on all ranks.

    Of whole gradients it equals that of ``clip_grad_norm_`` bit by bit. torch's own cannot mix
    sharded and whole gradients, nor several meshes, and fails for the infinite norm where a rank's
    part is empty. Here one scalar per mesh and layout is exchanged.
    """
    total: Tensor
    if are_whole(gradients):
        if _get_total_norm is None:
            return _norm_here(gradients, norm_type)
        total = _get_total_norm(gradients, norm_type)
        return total
    by_layout: dict[Any, list[Any]] = {}
    for gradient in gradients:
        layout = getattr(gradient, "device_mesh", None), getattr(gradient, "placements", None)
        by_layout.setdefault(layout, []).append(gradient)
    norms = [_norm_over_ranks(group, norm_type, *key) for key, group in by_layout.items()]
    stacked = torch.stack([norm.to(norms[0].device, non_blocking=True) for norm in norms])
    total = torch.linalg.vector_norm(stacked, norm_type)
    return total


def _norm_over_ranks(group: list[Any], norm_type: float, mesh: Any, placements: Any) -> Tensor:
    if mesh is None:
        return _norm_here(group, norm_type)
    if any(placement.is_partial() for placement in placements):  # a sum that is not reduced yet
        return _norm_here([gradient.full_tensor() for gradient in group], norm_type)
    here = _norm_here([local_part(gradient) for gradient in group], norm_type)
    # Replicated values count once; shards add up.
    is_infinite = math.isinf(norm_type)
    value = here if is_infinite else here**norm_type
    value = value.to(mesh.device_type)  # of offloaded shards
    for dim, placement in enumerate(placements):
        if not placement.is_replicate():
            operation = dist.ReduceOp.MAX if is_infinite else dist.ReduceOp.SUM
            dist.all_reduce(value, operation, group=mesh.get_group(dim))
    return value if is_infinite else value ** (1 / norm_type)


def _norm_here(tensors: list[Tensor], norm_type: float) -> Tensor:
    # The infinite norm of an empty tensor is an error in torch; 0 is right for every norm.
    norms = [torch.linalg.vector_norm(one.detach(), norm_type) for one in tensors if one.numel()]
    if not norms:
        return torch.zeros((), device=tensors[0].device, dtype=tensors[0].dtype)
    stacked = torch.stack([norm.to(norms[0].device, non_blocking=True) for norm in norms])
    total: Tensor = torch.linalg.vector_norm(stacked, norm_type)
    return total
