"""The layout of ``torch_npu``'s state dicts."""

from collections.abc import Mapping
from typing import Any

# Switches in the groups of torch's optimizers, in any version. torch_npu has none of them.
_TORCH_SWITCHES: Mapping[str, Any] = {
    "maximize": False,
    "foreach": None,
    "capturable": False,
    "differentiable": False,
    "fused": None,
}
REFUSED_SWITCHES = ("maximize", "capturable", "differentiable")


def torch_switches(*without: str, **more: Any) -> Mapping[str, Any]:
    """Return the switches in the groups of a class of torch, at their defaults."""
    return {**{key: v for key, v in _TORCH_SWITCHES.items() if key not in without}, **more}


def without_switches(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return a parameter group as ``torch_npu`` writes it."""
    left_out = {*_TORCH_SWITCHES, "decoupled_weight_decay"}
    return {key: value for key, value in group.items() if key not in left_out}


def with_int_step(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return a parameter's state with ``step``, if there is one, as ``torch_npu``'s int."""
    return {**entry, "step": int(entry["step"])} if "step" in entry else dict(entry)
