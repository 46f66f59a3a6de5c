"""The random number generators of one process, as tensors and primitives."""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, Any

import torch

from mm_runner.errors import CheckpointError

from ._writing import first_line

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["rng_state", "set_rng_state"]


def rng_state(device: torch.device) -> dict[str, Any]:
    """Return the states of Python's, torch's, the device's and (if imported) NumPy's generators.

    Args:
        device: The device of this process.
    """
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if device.type != "cpu":
        module = _device_module(device)
        if hasattr(module, "get_rng_state"):
            state[device.type] = module.get_rng_state(device)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, position, has_gauss, gauss = numpy.random.get_state()
        state["numpy"] = (name, keys.tolist(), int(position), int(has_gauss), float(gauss))
    return state


def set_rng_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Return the generators to ``state``; those that this process lacks are passed over.

    Raises:
        CheckpointError: If it is no state of generators.
    """
    numpy = sys.modules.get("numpy")
    try:
        version, internal, gauss = state["python"]
        random.setstate((version, tuple(internal), gauss))
        torch.set_rng_state(state["torch"])
        if device.type in state and device.type != "cpu":
            _device_module(device).set_rng_state(state[device.type], device)
        if numpy is not None and "numpy" in state:
            name, keys, *others = state["numpy"]
            numpy.random.set_state((name, numpy.array(keys, dtype=numpy.uint32), *others))
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"The checkpoint's rng cannot be used: {type(error).__name__}: {first_line(error)}"
        ) from error


def _device_module(device: torch.device) -> Any:
    return getattr(torch, device.type)
