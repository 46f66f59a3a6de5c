"""Scalars of log lines: learning rates, and means over the processes."""

from __future__ import annotations

import math
import zlib
from typing import Any

import torch

import mm_dist
from mm_runner.optim import named_wrappers

__all__ = ["learning_rates", "mean_over_ranks"]

# Their backends carry float64, and do not add it.
_CANNOT_ADD_FLOAT64 = ("npu", "mlu")


def learning_rates(optim_wrapper: Any) -> dict[str, float]:
    """Return the present learning rates; this waits for the device where they are tensors.

    Args:
        optim_wrapper: An optimizer wrapper, or an ``OptimWrapperDict``.

    Returns:
        ``lr``, that of the first group of parameters; where groups began with different ones also
        ``base_lr``, that of the groups which have the optimizer's own. Of several optimizers each
        is ``<name>.lr`` and ``<name>.base_lr``.
    """
    rates = {}
    for name, wrapper in named_wrappers(optim_wrapper).items():
        prefix = f"{name}." if name else ""
        found = {key: float(values[0]) for key, values in wrapper.get_lr().items()}
        groups = [group for group in wrapper.param_groups if "lr" in group]
        # What schedules began with does not change: a line does not lose a name where rates meet.
        began = [float(group.get("initial_lr", group["lr"])) for group in groups]
        own = getattr(wrapper.optimizer, "defaults", {}).get("lr")
        if len(set(began)) > 1 and own is not None:
            pairs = zip(groups, began, strict=True)
            of_base = [group["lr"] for group, rate in pairs if math.isclose(rate, float(own))]
            found.update({"base_lr": float(of_base[0])} if of_base else {})
        rates.update({f"{prefix}{key}": rate for key, rate in found.items()})
    return rates


def mean_over_ranks(scalars: dict[str, float]) -> dict[str, float]:
    """Return the mean of each scalar over the processes; all must call this at the same time.

    It costs two small all-reduces, or an exchange of objects where processes have other names than
    each other: a name then counts where it is there.
    """
    if mm_dist.get_world_size() == 1:
        return scalars
    names = sorted(scalars)
    checksum = float(zlib.crc32("\n".join(names).encode()) % 2**24)  # exact in float32
    limits = torch.tensor([checksum, -checksum])
    mm_dist.all_reduce(limits, "max")
    # Equal on all processes, so that all take the same way.
    if limits[0] == -limits[1]:
        adds = mm_dist.get_comm_device().type not in _CANNOT_ADD_FLOAT64
        dtype = torch.float64 if adds else torch.float32
        numbers = torch.tensor([scalars[name] for name in names], dtype=dtype)
        mm_dist.all_reduce(numbers, "mean")
        means = dict(zip(names, numbers.tolist(), strict=True))
        return {name: means[name] for name in scalars}
    gathered = mm_dist.all_gather_object(scalars)
    found = {
        name: [one[name] for one in gathered if name in one] for one in gathered for name in one
    }
    return {name: sum(values) / len(values) for name, values in found.items()}
