"""The state of torch's PowerSGD, by which a data-parallel wrapper may exchange gradients.

It holds what the approximation has left out of this process's gradients so far, for each bucket of
gradients, and where the next one begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn

__all__ = ["comm_hook_states", "power_sgd_states", "read_power_sgd", "write_power_sgd"]

_TENSORS = ("error_dict", "p_memory_dict", "q_memory_dict")
_NUMBERS = (
    "iter",
    "next_stats_report",
    "total_numel_before_compression",
    "total_numel_after_compression",
)


def comm_hook_states(model: nn.Module) -> dict[str, Any]:
    """Return the states of the wrappers' communication hooks, by the wrappers' names."""
    states = {name: getattr(one, "comm_hook_state", None) for name, one in model.named_modules()}
    return {name: state for name, state in states.items() if state is not None}


def power_sgd_states(model: nn.Module) -> dict[str, Any]:
    """Return those that are torch's ``PowerSGDState``."""
    own = (*_TENSORS, "rng", "iter")
    return {
        name: state
        for name, state in comm_hook_states(model).items()
        if all(hasattr(state, attribute) for attribute in own)
    }


def read_power_sgd(state: Any) -> dict[str, Any]:
    """Return what changes in a ``PowerSGDState``, as tensors on the CPU and primitives."""
    kind, keys, position, has_gauss, gauss = state.rng.get_state()
    read: dict[str, Any] = {
        name: {index: one.detach().cpu() for index, one in getattr(state, name).items()}
        for name in _TENSORS
    }
    for name in _NUMBERS:
        read[name] = int(getattr(state, name))
    keys = torch.tensor(keys.tolist(), dtype=torch.int64)
    read["rng"] = [str(kind), keys, int(position), int(has_gauss), float(gauss)]
    return read


def write_power_sgd(state: Any, saved: Mapping[str, Any], device: torch.device) -> None:
    """Let ``state`` go on from what :func:`read_power_sgd` returned.

    Args:
        state: torch's ``PowerSGDState``.
        saved: Left as it is.
        device: Of the gradients.
    """

    def place(one: Tensor) -> Tensor:
        return one.to(device, copy=True)

    for name in _TENSORS:
        setattr(state, name, {index: place(one) for index, one in saved[name].items()})
    for name in _NUMBERS:
        setattr(state, name, saved[name])
    kind, keys, *rest = saved["rng"]
    state.rng.set_state((kind, keys.tolist(), *rest))
