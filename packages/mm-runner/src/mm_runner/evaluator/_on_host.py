"""Predictions as tensors on the CPU and primitives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mm_runner.errors import ConfigError

__all__ = ["on_host"]

_PRIMITIVES = (bool, int, float, str)


def on_host(value: Any, where: str = "predictions") -> Any:
    """Return a copy of ``value`` in tensors on the CPU, primitives, lists, tuples and dicts.

    Arrays of NumPy become tensors, and an object with ``to_dict()``, as data samples have it, what
    this returns.

    Args:
        value: What a step predicted.
        where: Its path, for messages.

    Raises:
        ConfigError: If something is neither of these; the message names its path.

    Example:
        >>> on_host({"score": torch.tensor(0.5, requires_grad=True), "box": (1, 2)})
        {'score': tensor(0.5000), 'box': (1, 2)}
    """
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if value is None or type(value) in _PRIMITIVES:
        return value
    if isinstance(value, Mapping):
        return {on_host(key, where): on_host(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [on_host(item, f"{where}[{index}]") for index, item in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    return _from_object(value, where)


def _from_object(value: Any, where: str) -> Any:
    if type(value).__module__ == "numpy":
        return _from_numpy(value, where)
    if hasattr(value, "to_dict") and not isinstance(value, type):
        content = value.to_dict()
        if isinstance(content, Mapping):
            return on_host(content, where)
    if isinstance(value, _PRIMITIVES):  # a subclass, whose name a file would hold
        kind = next(one for one in _PRIMITIVES if isinstance(value, one))
        return str.__str__(value) if kind is str else kind(value)
    raise ConfigError(
        f"{where}: {type(value).__module__}.{type(value).__name__} cannot be kept; a file of "
        "predictions holds tensors, numbers, text, lists and dicts only, so that it is read "
        "without running code. Return these, or give the class a to_dict()."
    )


def _from_numpy(value: Any, where: str) -> Any:
    if value.ndim == 0:
        item = value.item()
        return float(item) if type(item) is type(value) else on_host(item, where)
    try:
        return torch.from_numpy(value.copy())
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{where}: an array of {value.dtype} cannot be kept, as torch has no such tensors. "
            "Return a list."
        ) from error
