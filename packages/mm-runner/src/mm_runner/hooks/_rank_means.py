"""Scalars averaged over the processes."""

from __future__ import annotations

import zlib

import torch

import mm_dist

__all__ = ["mean_over_ranks"]

# Numbers in one exchange, so that processes with other names have as many to give.
_BLOCK = 64
# Of a checksum: its square, summed over a million processes, is exact in float64.
_CHECKSUM_LIMIT = 2**16
# Their backends carry float64 all the same.
_CANNOT_ADD_FLOAT64 = ("npu", "mlu")


def mean_over_ranks(scalars: dict[str, float]) -> dict[str, float]:
    """Return the mean of each scalar over the processes; all must call this at the same time.

    It costs one small all-reduce, and another exchange where processes have other names than each
    other: a name then counts where it is there.
    """
    world_size = mm_dist.get_world_size()
    if world_size == 1:
        return scalars
    names = sorted(scalars)
    checksum = zlib.crc32("\n".join(names).encode()) % _CHECKSUM_LIMIT
    numbers = [float(checksum), float(checksum) ** 2, *(scalars[name] for name in names)]
    padding = [0.0] * (-len(numbers) % _BLOCK)
    summed = _sum_over_ranks(torch.tensor([*numbers, *padding], dtype=torch.float64)).tolist()
    # Equal on all processes, so that all take the same way: no spread, so all are the same.
    if summed[1] * world_size == summed[0] ** 2:
        by_name = dict(zip(names, summed[2:], strict=False))
        return {name: by_name[name] / world_size for name in scalars}
    return _mean_of_any(scalars)


def _sum_over_ranks(numbers: torch.Tensor) -> torch.Tensor:
    if mm_dist.get_comm_device().type in _CANNOT_ADD_FLOAT64:
        return torch.stack(mm_dist.all_gather(numbers)).sum(0)
    mm_dist.all_reduce(numbers)
    return numbers


def _mean_of_any(scalars: dict[str, float]) -> dict[str, float]:
    gathered = mm_dist.all_gather_object(scalars)
    means = {}
    for name in {name: None for one in gathered for name in one}:
        values = [one[name] for one in gathered if name in one]
        means[name] = sum(values) / len(values)
    return means
