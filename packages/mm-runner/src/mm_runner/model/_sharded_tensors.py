"""Gather and shard tensors that may be DTensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["distribute_as", "full_tensor", "local_part", "shard_as", "sharded_type"]


def local_part(tensor: Tensor) -> Tensor:
    """Return this rank's part of a sharded tensor, any other as it is."""
    part: Any = getattr(tensor, "_local_tensor", None)
    return tensor if part is None else part


def full_tensor(tensor: Any) -> Tensor:
    """Gather a sharded tensor, return any other as it is; all ranks must call this."""
    gathered: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return gathered


def distribute_as(like: Tensor, part: Tensor) -> Tensor:
    """Return the tensor, sharded as ``like`` is, of which this rank holds ``part``."""
    if not hasattr(like, "full_tensor"):
        return part
    sharded: Any = like
    tensor: Tensor = sharded.from_local(
        part.to(local_part(like).device),
        sharded.device_mesh,
        sharded.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )
    return tensor


def shard_as(like: Tensor, full: Tensor) -> Tensor:
    """Return this rank's part of a full tensor, if ``like`` is sharded, else ``full``."""
    if not hasattr(like, "full_tensor"):
        return full
    from torch.distributed.tensor import distribute_tensor  # noqa: PLC0415 - has torch of 2.5 on

    sharded: Any = like
    if full.is_meta:
        full = torch.empty_like(full, device=sharded.device)
    return local_part(
        distribute_tensor(full.to(sharded.device), sharded.device_mesh, sharded.placements)
    )


def sharded_type() -> Any:
    """Return the type of sharded tensors, for ``isinstance``; ``()`` where torch has none."""
    try:
        from torch.distributed.tensor import DTensor  # noqa: PLC0415 - has torch of 2.5 on
    except ImportError:
        return ()
    return DTensor
