"""The optimizers of a plan: their groups, and what they keep."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from mm_runner.optim import build_optim_wrapper, named_wrappers

from ._model import bytes_by_dtype
from ._optimizer_state import tensors_kept

__all__ = ["describe_optimizers", "state_bytes", "wrapper_of_plan"]

_LONGEST_REASON = 200


def wrapper_of_plan(
    model: nn.Module, cfg: Mapping[str, Any], device_type: str, notes: list[str]
) -> Any:
    """Build the optimizer wrapper, or several, over a model without memory.

    Raises:
        ConfigError: If the config does not fit.
    """
    placed = _placed(cfg, device_type)
    try:
        return build_optim_wrapper(model, placed)
    except RuntimeError as error:  # fused kernels want their device
        plain = _without_fused(placed)
        if plain == placed:
            raise
        notes.append(
            f"The optimizer was planned without fused=True, which asks the device: {error}"
        )
        return build_optim_wrapper(model, plain)


def describe_optimizers(optim_wrapper: Any) -> list[dict[str, Any]]:
    """Return each optimizer really used, with its groups of parameters."""
    return [
        {
            "name": name,
            "wrapper": type(wrapper).__name__,
            "optimizer": type(wrapper.optimizer).__name__,
            "from": type(wrapper.optimizer).__module__,
            "accumulative_counts": getattr(wrapper, "accumulative_counts", 1),
            "precision": str(getattr(wrapper, "dtype", "float32")).removeprefix("torch."),
            "groups": [_describe_group(group) for group in wrapper.optimizer.param_groups],
        }
        for name, wrapper in named_wrappers(optim_wrapper).items()
    ]


def state_bytes(optim_wrapper: Any, notes: list[str]) -> dict[str, int] | None:
    """Return how many bytes the optimizers keep after a step, by dtype; ``None`` if unknown.

    Args:
        optim_wrapper: Over a model without memory; a step of it costs nothing, and is taken.
        notes: Says why it is not known.
    """
    tensors: list[Tensor] = []
    for wrapper in named_wrappers(optim_wrapper).values():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tensors += tensors_kept(wrapper.optimizer)
        except Exception as error:  # noqa: BLE001 - it may want values, or a closure
            reason = f"{type(error).__name__}: {error}"[:_LONGEST_REASON]
            notes.append(f"What {type(wrapper.optimizer).__name__} keeps is not known: {reason}")
            return None
    return bytes_by_dtype(tensors)


def _describe_group(group: Mapping[str, Any]) -> dict[str, Any]:
    settings = {
        name: _as_number(group[name])
        for name in ("lr", "weight_decay", "momentum", "betas")
        if name in group
    }
    count = sum(parameter.numel() for parameter in group["params"])
    return {"parameters": count, "tensors": len(group["params"]), **settings}


def _as_number(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_as_number(one) for one in value]
    return float(value) if isinstance(value, Tensor) else value


def _placed(cfg: Any, device_type: str) -> Any:
    """Return ``cfg`` with the device that autocast is for, which the parameters do not tell."""
    if not isinstance(cfg, Mapping):
        return cfg
    if cfg.get("type") == "AmpOptimWrapper" and cfg.get("device_type") is None:
        return {**cfg, "device_type": device_type}
    if "optimizer" in cfg:
        return cfg
    return {name: _placed(part, device_type) for name, part in cfg.items()}


def _without_fused(cfg: Any) -> Any:
    if not isinstance(cfg, Mapping):
        return cfg
    return {name: _without_fused(part) for name, part in cfg.items() if name != "fused"}
