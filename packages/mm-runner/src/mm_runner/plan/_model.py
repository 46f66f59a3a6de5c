"""The model of a plan, without the memory that it would take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from mm_runner.errors import MMRunnerError
from mm_runner.model import check_wrapped_step, uncalled_step, unwrap_model
from mm_runner.runner._wrapping import build_model, is_wrapped, with_preprocessor, wrapper_type

__all__ = ["bytes_by_dtype", "check_step_of_plan", "describe_model", "model_without_memory"]


def model_without_memory(cfg: Mapping[str, Any], notes: list[str]) -> nn.Module:
    """Build the model on the meta device, whose tensors have shapes and no values.

    Args:
        cfg: The full configuration.
        notes: Gets one if the model can only be built with its values, or torch has no such device
            to build on (before 2.0).

    Raises:
        ConfigError: If the model's config does not fit.
    """
    on_meta: AbstractContextManager[Any] = nullcontext()
    if hasattr(torch, "set_default_device"):
        on_meta = torch.device("meta")
    else:
        notes.append("The model was built with its values: torch before 2.0 knows no other way.")
    model = with_preprocessor(cfg["model"], cfg.get("data_preprocessor"))
    try:
        with on_meta:
            return build_model(model)
    except MMRunnerError as error:
        if _is_users_mistake(error):
            raise
        reason = error.__cause__ or error
    except Exception as error:  # noqa: BLE001 - whatever a model does with values
        reason = error
    notes.append(f"The model was built with its values: without them it fails ({reason}).")
    return build_model(model)


def _is_users_mistake(error: MMRunnerError) -> bool:
    """Return whether ``error`` is not one that the lack of values may have caused."""
    return error.__cause__ is None


def describe_model(model: nn.Module) -> dict[str, Any]:
    """Return the size of ``model``."""
    parameters, buffers = list(model.parameters()), list(model.buffers())
    return {
        "name": type(model).__name__,
        "parameters": _count(parameters),
        "trained": _count(one for one in parameters if one.requires_grad),
        "buffers": _count(buffers),
        "bytes": bytes_by_dtype([*parameters, *buffers]),
    }


def check_step_of_plan(cfg: Mapping[str, Any], model: nn.Module, notes: list[str]) -> None:
    """Check that the model can be trained in the wrapper that several processes put it into.

    Args:
        cfg: The full configuration.
        model: As it was built.
        notes: Gets one if the model's own ``train_step`` is left out.

    Raises:
        ConfigError: If not.
    """
    wrapper = type(model) if is_wrapped(model) else wrapper_type(cfg.get("model_wrapper_cfg") or {})
    check_wrapped_step(unwrap_model(model), wrapper)
    told = uncalled_step(unwrap_model(model), wrapper)
    if told is not None:
        notes.append(told)


def bytes_by_dtype(tensors: Iterable[Tensor]) -> dict[str, int]:
    """Return how many bytes the values of ``tensors`` take, by the name of their dtype."""
    sizes: dict[str, int] = {}
    for tensor in tensors:
        name = str(tensor.dtype).removeprefix("torch.")
        sizes[name] = sizes.get(name, 0) + tensor.numel() * tensor.element_size()
    return sizes


def _count(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)
