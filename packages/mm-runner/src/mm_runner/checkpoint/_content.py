"""What may stand in a checkpoint, and how model parameters are named in it."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from mm_runner.errors import CheckpointError

if TYPE_CHECKING:
    from torch import nn

__all__ = ["FORMAT_VERSION", "clean_state_dict", "load_weights", "plain"]

# Raised when a file of one version could not be read by the other.
FORMAT_VERSION = 1

# What wrappers put before parameter names, in any order and number.
_LEADING_WRAPPERS = re.compile(r"^(?:(?:_orig_mod|module)\.)+")


def clean_state_dict(state_dict: Mapping[str, Any]) -> OrderedDict[str, Any]:
    """Return ``state_dict`` with parameter names free of ``module.`` and ``_orig_mod.``.

    ``_orig_mod.`` is removed wherever it stands. ``module.`` only at the front: inside a name it
    may be the model's own attribute.

    Example:
        >>> list(clean_state_dict({"module._orig_mod.a.weight": 1, "b._orig_mod.bias": 2}))
        ['a.weight', 'b.bias']
    """
    cleaned: OrderedDict[str, Any] = OrderedDict()
    for name, value in state_dict.items():
        cleaned[_LEADING_WRAPPERS.sub("", name).replace("_orig_mod.", "")] = value
    return cleaned


def load_weights(model: nn.Module, state_dict: Mapping[str, Any], *, strict: bool) -> list[str]:
    """Load parameters and buffers into an unwrapped ``model``.

    Args:
        model: Without wrappers.
        state_dict: Names may carry wrappers' prefixes.
        strict: Whether a missing, unexpected or differently shaped entry is an error.

    Returns:
        One line for each entry that did not fit; empty if all did.

    Raises:
        CheckpointError: If ``strict`` and something did not fit.
    """
    own = model.state_dict()
    cleaned = clean_state_dict(state_dict)
    if not set(cleaned) & set(own) and set(own) & set(state_dict):
        cleaned = OrderedDict(state_dict)  # the model's own first attribute is called "module"
    problems = [f"missing: {name}" for name in own if name not in cleaned]
    problems += [f"unexpected: {name}" for name in cleaned if name not in own]
    fitting = {}
    for name in own.keys() & cleaned.keys():
        here, there = getattr(own[name], "shape", None), getattr(cleaned[name], "shape", None)
        if here == there:
            fitting[name] = cleaned[name]
        else:
            problems.append(f"{name}: the model has {_shape(here)}, the file {_shape(there)}")
    if problems and strict:
        raise CheckpointError(
            f"The checkpoint does not fit {type(model).__name__}: {'; '.join(problems[:10])}"
            f"{f' and {len(problems) - 10} more' if len(problems) > 10 else ''}. "
            "Use the model that it was saved from, or load_from to take what fits."
        )
    model.load_state_dict(fitting, strict=False)
    return problems


def plain(value: Any, path: str = "checkpoint") -> Any:
    """Return ``value`` with tensors detached and on the CPU, or say what may not be saved.

    Raises:
        CheckpointError: If something is neither a tensor nor a primitive, naming its path.
    """
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        kind = OrderedDict if isinstance(value, OrderedDict) else dict
        return kind((key, plain(item, f"{path}.{key}")) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        items = [plain(item, f"{path}[{index}]") for index, item in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    raise CheckpointError(
        f"{path}: {type(value).__module__}.{type(value).__name__} cannot be saved; a checkpoint "
        "holds tensors, numbers, text, lists and dicts only, so that it loads without running "
        "code. Convert it in before_save_checkpoint."
    )


def _shape(shape: Any) -> str:
    return "no shape" if shape is None else str(tuple(shape))
