"""Replace and restore the forward of single modules; each stays the same object and class."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

__all__ = ["call_replaced", "names_with_forward", "replace_forward", "restore_forwards"]


def replace_forward(module: nn.Module, function: Callable[..., Any], *args: Any) -> None:
    """Let ``function(module, replaced, *args, ...)`` stand for the forward of ``module``.

    A partial of a function of this package, as copies and pickles of it refer to their own module.
    """
    vars(module)["forward"] = partial(function, module, vars(module).get("forward"), *args)


def call_replaced(module: nn.Module, replaced: Any, *args: Any, **kwargs: Any) -> Any:
    """Call an earlier replacement, or the forward of the class."""
    if replaced is not None:
        return replaced(*args, **kwargs)
    return type(module).forward(module, *args, **kwargs)


def names_with_forward(model: nn.Module, function: Callable[..., Any]) -> list[str]:
    """Return the names of the modules in ``model`` whose forward ``function`` stands for."""
    return [
        name
        for name, module in model.named_modules()
        if any(one.func is function for one in _replacements(module))
    ]


def restore_forwards(model: nn.Module) -> None:
    """Undo every replacement in ``model``."""
    for module in model.modules():
        for one in _replacements(module):
            if one.args[1] is None:
                del vars(module)["forward"]
            else:
                vars(module)["forward"] = one.args[1]


def _replacements(module: nn.Module) -> list[Any]:
    """Return what stands for the forward of ``module``, the outermost first."""
    found, forward = [], vars(module).get("forward")
    while isinstance(forward, partial) and forward.func.__module__.startswith(f"{__package__}."):
        found.append(forward)
        forward = forward.args[1]
    return found
