"""Averaging and copying many tensors at once, whole ones or the parts of sharded ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["average_into", "copy_into", "local", "shard_like", "spread", "whole"]

_Pairs = list[tuple[Tensor, Tensor]]


def average_into(pairs: _Pairs, weight: float | Tensor) -> None:
    """Move each average towards its source by ``weight``; where that is no number, copy.

    Args:
        pairs: Averages and sources, each of one shape.
        weight: From 0 to 1; a 0-d tensor is not read.
    """
    alike: _Pairs = []
    for average, source in pairs:
        if not (average.is_floating_point() or average.is_complex()):
            average.copy_(source)
        elif (average.dtype, average.device) == (source.dtype, source.device):
            alike.append((average, source))
        else:
            _lerp(average, source.to(average.device, average.dtype), weight)
    if not alike:
        return
    lerp = getattr(torch, "_foreach_lerp_", None)  # not in torch 1.13
    if lerp is None or isinstance(weight, Tensor):
        for average, source in alike:
            _lerp(average, source, weight)
    else:
        averages, sources = zip(*alike, strict=True)
        lerp(list(averages), list(sources), weight)


def copy_into(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy each source into its target, which may be of another type or device."""
    copy = getattr(torch, "_foreach_copy_", None)  # from torch 2.1 on
    if copy is not None and targets:
        copy(targets, sources)
        return
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a sharded tensor, any other as it is."""
    part: Any = getattr(tensor, "_local_tensor", None)
    return tensor if part is None else part


def spread(part: Tensor, like: Tensor) -> Tensor:
    """Return the tensor of which ``part`` is this rank's, sharded as ``like`` is."""
    if not hasattr(like, "full_tensor"):
        return part
    sharded: Any = like
    tensor: Tensor = sharded.from_local(
        part.to(local(like).device),
        sharded.device_mesh,
        sharded.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )
    return tensor


def whole(tensor: Any) -> Tensor:
    """Return a sharded tensor whole, any other as it is; all ranks must call this."""
    gathered: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return gathered


def shard_like(given: Tensor, like: Tensor) -> Tensor:
    """Return this rank's part of a whole tensor, sharded as ``like`` is.

    Of a sharded one the values of the first rank count; those of others may have a shape only.
    """
    if not hasattr(like, "full_tensor"):
        return given
    from torch.distributed.tensor import distribute_tensor  # noqa: PLC0415 - has torch of 2.5 on

    placed: Any = like
    if given.is_meta:
        given = torch.empty_like(given, device=placed.device)
    part = given.to(placed.device)
    return local(distribute_tensor(part, placed.device_mesh, placed.placements))


def _lerp(average: Tensor, source: Tensor, weight: float | Tensor) -> None:
    if isinstance(weight, Tensor):
        weight = weight.to(device=average.device, dtype=average.dtype)
    average.lerp_(source, weight)
