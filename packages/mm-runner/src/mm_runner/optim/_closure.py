"""Refuse optimizers whose step needs a closure."""

from __future__ import annotations

import inspect
from typing import Any

from mm_runner.errors import ConfigError

__all__ = ["refuse_closure"]

_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def refuse_closure(kind: Any, where: str) -> None:
    """Refuse an optimizer whose ``step`` cannot be called without a closure, such as ``LBFGS``.

    Args:
        kind: Its class; what is no class is taken as it is.
        where: Path of its config, for messages.

    Raises:
        ConfigError: If it needs one.
    """
    try:
        parameters = list(inspect.signature(kind.step).parameters.values())[1:]
    except (AttributeError, TypeError, ValueError):  # no method of Python
        return
    needed = [
        one.name for one in parameters if one.kind in _BY_POSITION and one.default is one.empty
    ]
    if needed:
        name = getattr(kind, "__name__", str(kind))
        raise ConfigError(
            f"{where}: {name}.step() needs {', '.join(map(repr, needed))}, and training calls it "
            "without: each step computes the loss once. Use an optimizer that steps from the "
            f"gradients alone, such as SGD or AdamW; or write a train_step of the model's own that "
            f"calls optim_wrapper.step({needed[0]}=...)."
        )
