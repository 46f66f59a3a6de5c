"""Gather and shard tensors that may be DTensors."""

from __future__ import annotations

from typing import Any

from torch import Tensor

__all__ = ["distribute_as", "local_part", "shard_as"]


def local_part(tensor: Tensor) -> Tensor:
    """Return this rank's part of a sharded tensor, any other as it is."""
    part: Any = getattr(tensor, "_local_tensor", None)
    return tensor if part is None else part


def distribute_as(like: Any, part: Tensor) -> Any:
    """Return the tensor, sharded as ``like`` is, of which this rank holds ``part``."""
    if local_part(like) is like:
        return part
    part, options = part.to(local_part(like).device), {"shape": like.shape, "stride": like.stride()}
    return like.from_local(part, like.device_mesh, like.placements, run_check=False, **options)


def shard_as(like: Any, full: Tensor) -> Tensor:
    """Return this rank's part of a full tensor, if ``like`` is sharded, else ``full``."""
    if local_part(like) is like:
        return full
    from torch.distributed.tensor import distribute_tensor  # noqa: PLC0415 - has torch of 2.5 on

    spread: Any = full
    if hasattr(full, "full_tensor"):  # read by this rank
        return local_part(spread.redistribute(like.device_mesh, like.placements))
    return local_part(distribute_tensor(full.to(like.device), like.device_mesh, like.placements))
