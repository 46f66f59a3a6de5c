"""Calling hooks by position, which costs half of a call by name."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["by_position"]


def by_position(method: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    """Return ``method`` in a form that takes the runner, and then ``names``, by position.

    Args:
        method: To be called as ``method(runner, **arguments)``: a user's hook may have its
            arguments in another order, or take them all as ``**kwargs``.
        names: Of the arguments after the runner.
    """
    try:
        # What a decorator wraps is not what is called.
        parameters = list(inspect.signature(method, follow_wrapped=False).parameters.values())[1:]
    except (TypeError, ValueError):  # written in C, or wrapped beyond recognition
        parameters = []
    if [one.name for one in parameters] == list(names) and all(
        one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for one in parameters
    ):
        return method
    return lambda runner, *values: method(runner, **dict(zip(names, values, strict=True)))
