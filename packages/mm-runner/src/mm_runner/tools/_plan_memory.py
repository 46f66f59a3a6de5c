"""Memory that a training keeps beside its model, as far as it is certain."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mm_runner.hooks import EMAHook
from mm_runner.optim import named_wrappers
from mm_runner.runner._model import is_wrapped

__all__ = ["bytes_by_dtype", "describe_memory"]

_HALF = (torch.float16, torch.bfloat16)
_LONGEST_REASON = 200


def describe_memory(
    model: nn.Module,
    optim_wrapper: Any,
    hooks: Iterable[Any],
    model_wrapper_cfg: Mapping[str, Any] | None,
    world_size: int,
    notes: list[str],
) -> dict[str, dict[str, int] | None]:
    """Return bytes by dtype; ``None`` for an optimizer whose state is not known.

    Args:
        model: On the meta device, not wrapped by the run.
        optim_wrapper: Over it.
        hooks: Of the run.
        model_wrapper_cfg: Of the run.
        world_size: Processes of the run.
        notes: Gets a sentence if the state is not known.
    """
    wrappers = named_wrappers(optim_wrapper).values()
    groups = [group for one in wrappers for group in one.optimizer.param_groups]
    trained = [one for group in groups for one in group["params"] if one.requires_grad]
    averages = [one for hook in hooks if isinstance(hook, EMAHook) for one in _averages(model)]
    return {
        "gradients": bytes_by_dtype(trained),
        "optimizer_state": _state_bytes(optim_wrapper, notes),
        "averages": bytes_by_dtype(averages),
        "ddp_buckets": _buckets(model_wrapper_cfg or {}, model, world_size),
    }


def bytes_by_dtype(tensors: Iterable[Tensor]) -> dict[str, int]:
    """Return the number of bytes of ``tensors`` by the name of their dtype."""
    sizes: dict[str, int] = {}
    for tensor in tensors:
        name = str(tensor.dtype).removeprefix("torch.")
        sizes[name] = sizes.get(name, 0) + tensor.numel() * tensor.element_size()
    return sizes


def _averages(model: nn.Module) -> list[Tensor]:
    """Return tensors like the average of the trained weights, which is in float32 at least."""
    return [
        torch.empty_like(one, dtype=torch.float32 if one.dtype in _HALF else one.dtype)
        for one in model.parameters()
        if one.requires_grad
    ]


def _state_bytes(optim_wrapper: Any, notes: list[str]) -> dict[str, int] | None:
    """Take a step over parameters without values, and count what the optimizers keep."""
    kept: list[Tensor] = []
    for wrapper in named_wrappers(optim_wrapper).values():
        optimizer = wrapper.optimizer
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for group in optimizer.param_groups:
                    for parameter in group["params"]:
                        if parameter.requires_grad:
                            parameter.grad = torch.zeros_like(parameter)
                optimizer.step()
        except Exception as error:  # noqa: BLE001 - some read values, or need a closure
            reason = f"{type(error).__name__}: {error}"[:_LONGEST_REASON]
            notes.append(f"What {type(optimizer).__name__} keeps is not known: {reason}")
            return None
        kept += _tensors_in(list(optimizer.state.values()))
    return bytes_by_dtype(kept)


def _tensors_in(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    items = value if isinstance(value, (list, tuple)) else ()
    return [tensor for item in items for tensor in _tensors_in(item)]


def _buckets(cfg: Mapping[str, Any], model: nn.Module, world_size: int) -> dict[str, int]:
    """Return the size of the buckets that DistributedDataParallel copies gradients into."""
    kind = cfg.get("type", "MMDistributedDataParallel")
    name = kind if isinstance(kind, str) else kind.__name__
    is_ddp = name.endswith("DistributedDataParallel") and not cfg.get("gradient_as_bucket_view")
    if world_size == 1 or is_wrapped(model) or not is_ddp:
        return {}
    return bytes_by_dtype(one for one in model.parameters() if one.requires_grad)
