"""Scalars from where they were computed to the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["as_numbers"]


def as_numbers(values: Sequence[Any]) -> list[Any]:
    """Return numbers and tensors of one element as numbers: one transfer for each device."""
    numbers = list(values)
    by_device: dict[torch.device, list[int]] = {}
    for index, value in enumerate(values):
        if type(value) is not float and isinstance(value, Tensor):  # most others are one
            by_device.setdefault(value.device, []).append(index)
    for indices in by_device.values():
        stacked = torch.stack([_as_scalar(values[index]) for index in indices])
        for index, number in zip(indices, stacked.tolist(), strict=True):
            numbers[index] = number
    return numbers


def _as_scalar(tensor: Tensor) -> Tensor:
    # Most are so already; asking is cheaper than an operator that changes nothing.
    scalar = tensor if tensor.ndim == 0 else tensor.reshape(())
    return scalar if scalar.dtype is torch.float32 else scalar.float()
