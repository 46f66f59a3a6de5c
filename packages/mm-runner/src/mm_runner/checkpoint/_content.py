"""What may stand in a checkpoint, and how model parameters are named in it."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from mm_runner.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

__all__ = ["FORMAT_VERSION", "PARTS_VERSION", "clean_name", "load_weights", "plain"]

# Raised when a file of one version could not be read by the other.
FORMAT_VERSION = 1
# Of a checkpoint in parts, which older versions of mm-runner would take for one without weights.
PARTS_VERSION = 2

# No bytes and no complex: the safe loaders of some torch versions refuse them.
_PRIMITIVES = (bool, int, float, str)

# What wrappers put before parameter names, in any order and number.
_LEADING_WRAPPERS = re.compile(r"^(?:(?:_orig_mod|module)\.)+")


def clean_name(name: str) -> str:
    """Return a parameter's name free of ``module.`` and ``_orig_mod.``.

    ``_orig_mod.`` is removed wherever it stands. ``module.`` only at the front: inside a name it
    may be the model's own attribute.

    Example:
        >>> clean_name("module._orig_mod.a.weight"), clean_name("b._orig_mod.bias")
        ('a.weight', 'b.bias')
    """
    return _LEADING_WRAPPERS.sub("", name).replace("_orig_mod.", "")


def load_weights(model: nn.Module, state_dict: Mapping[str, Any], *, strict: bool) -> list[str]:
    """Load parameters and buffers into an unwrapped ``model``.

    Args:
        model: Without wrappers.
        state_dict: Names may carry wrappers' prefixes.
        strict: Whether a missing, unexpected or differently shaped entry is an error.

    Returns:
        One line for each entry that did not fit; empty if all did.

    Raises:
        CheckpointError: If nothing fits, or ``strict`` and something does not.
    """
    if not isinstance(state_dict, Mapping) or not all(isinstance(one, str) for one in state_dict):
        raise CheckpointError(
            f"The checkpoint's state_dict is a {type(state_dict).__name__}; a dict of tensors by "
            "name is needed, as the state_dict() of a model returns."
        )
    own = model.state_dict()
    # Compared without wrappers on both sides: the model's own attribute may be called "module".
    names = {clean_name(name): name for name in own}
    cleaned = {
        name if name in own else names.get(clean_name(name), clean_name(name)): value
        for name, value in state_dict.items()
    }
    problems = [f"missing: {name}" for name in own if name not in cleaned]
    problems += [f"unexpected: {name}" for name in cleaned if name not in own]
    fitting = {}
    for name in (name for name in own if name in cleaned):
        here, there = getattr(own[name], "shape", None), getattr(cleaned[name], "shape", None)
        if here == there:
            fitting[name] = cleaned[name]
        else:
            problems.append(f"{name}: the model has {_shape(here)}, the file {_shape(there)}")
    if problems and (strict or not fitting):
        verdict = "The checkpoint does not fit" if fitting else "Nothing in the checkpoint fits"
        more = f" and {len(problems) - 10} more" if len(problems) > 10 else ""
        raise CheckpointError(
            f"{verdict} {type(model).__name__}: {'; '.join(problems[:10])}{more}. "
            "Use the model that it was saved from; without resume, load_from takes what fits."
        )
    model.load_state_dict(fitting, strict=False)
    return problems


def plain(
    value: Any, path: str = "checkpoint", *, to_host: Callable[[Tensor, str], Tensor] | None = None
) -> Any:
    """Return ``value`` with tensors detached and on the CPU, or say what may not be saved.

    Args:
        value: Tensors and primitives, in dicts, lists and tuples.
        path: Where ``value`` stands, for messages.
        to_host: Brings a detached tensor to the CPU, given also its path; by default nothing is
            copied that is there already.

    Raises:
        CheckpointError: If something is neither a tensor nor a primitive, naming its path.
    """
    if hasattr(value, "full_tensor"):
        raise CheckpointError(
            f"{path} is sharded over processes, and this one holds a part of it; save what the "
            "wrapper's full_state_dict() returns."
        )
    if isinstance(value, Tensor):
        return value.detach().cpu() if to_host is None else to_host(value.detach(), path)
    if value is None or isinstance(value, _PRIMITIVES):
        return _primitive(value)
    if isinstance(value, Mapping):
        kind = OrderedDict if isinstance(value, OrderedDict) else dict
        return kind(
            (plain(key, f"{path}.{key}"), plain(item, f"{path}.{key}", to_host=to_host))
            for key, item in value.items()
        )
    if isinstance(value, (list, tuple)):
        items = [
            plain(item, f"{path}[{index}]", to_host=to_host) for index, item in enumerate(value)
        ]
        return items if isinstance(value, list) else tuple(items)
    if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        return plain(value.item(), path)
    raise CheckpointError(
        f"{path}: {type(value).__module__}.{type(value).__name__} cannot be saved; a checkpoint "
        "holds tensors, numbers, text, lists and dicts only, so that it loads without running "
        "code. Convert it in before_save_checkpoint."
    )


def _primitive(value: Any) -> Any:
    """Return ``value`` as exactly a primitive.

    A subclass (a member of an enum, a float64 of NumPy) would be pickled with its class, and the
    safe loader refuses classes.
    """
    if value is None or type(value) in _PRIMITIVES:
        return value
    if isinstance(value, str):
        return str.__str__(value)  # str(value) of an enum's member is its name
    return int(value) if isinstance(value, int) else float(value)


def _shape(shape: Any) -> str:
    return "no shape" if shape is None else str(tuple(shape))
