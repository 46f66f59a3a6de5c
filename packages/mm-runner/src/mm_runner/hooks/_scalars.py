"""Scalars of log lines: learning rates, and means over the processes."""

from __future__ import annotations

import math
import zlib
from typing import Any

import torch

import mm_dist
from mm_runner.optim import named_wrappers

__all__ = ["learning_rates", "mean_over_ranks"]

# Numbers in one exchange, so that processes with other names have as many to give.
_BLOCK = 64
# Of a checksum: its square, summed over a million processes, is exact in float64.
_CHECKSUM_LIMIT = 2**16
# Their backends carry float64 all the same.
_CANNOT_ADD_FLOAT64 = ("npu", "mlu")


def learning_rates(optim_wrapper: Any) -> dict[str, float]:
    """Return the present learning rates; this waits for the device where they are tensors.

    Args:
        optim_wrapper: An optimizer wrapper, or an ``OptimWrapperDict``.

    Returns:
        ``lr``, that of the first group of parameters; where groups began with different ones also
        ``base_lr``, that of the groups which have the optimizer's own. Of several optimizers each
        is ``<name>.lr`` and ``<name>.base_lr``.

    Example:
        >>> learning_rates(runner.optim_wrapper)  # doctest: +SKIP
        {'lr': 0.001, 'base_lr': 0.01}
    """
    rates = {name: float(groups[0]) for name, groups in optim_wrapper.get_lr().items()}
    named: dict[str, float] = {}
    for name, rate in rates.items():
        named[name] = rate
        prefix, is_of_one, kind = name.rpartition(".")
        base_name = f"{prefix}{is_of_one}base_lr"
        if kind == "lr" and base_name not in rates:
            base = _base_rate(named_wrappers(optim_wrapper).get(prefix))
            named.update({} if base is None else {base_name: base})
    return named


def _base_rate(wrapper: Any) -> float | None:
    """Return the rate of the groups that nothing but the schedule changes, if others differ."""
    optimizer = getattr(wrapper, "optimizer", None)
    groups = getattr(optimizer, "param_groups", ())
    own = getattr(optimizer, "defaults", {}).get("lr")
    # What schedules began with does not change: a line does not lose a name where rates meet.
    began = [float(group.get("initial_lr", group["lr"])) for group in groups if "lr" in group]
    if own is None or len(began) != len(groups) or len(set(began)) < 2:
        return None
    of_base = (g for g, rate in zip(groups, began, strict=True) if math.isclose(rate, float(own)))
    found = next(of_base, None)
    return None if found is None else float(found["lr"])


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
