"""A function for every kind of region, with a code object that nothing else shares.

Dynamo keeps compiled code, its limit of recompilations and what it has learned about changing
shapes per code object (the last even per file, line and name). Blocks of one class but different
sizes share one ``forward``: without a code object of their own they would use up one limit together
and teach each other shapes that are not theirs.
"""

import os
from collections.abc import Callable
from itertools import count
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn

_TORCH_FOLDER = os.path.dirname(torch.__file__) + os.sep  # noqa: PTH120 - compared as text
_numbers = count()


def function_of(owner: nn.Module, attribute: str) -> FunctionType:
    """Make a function ``call(owner, *args, **kwargs)`` of a method, with a code object of its own.

    Args:
        owner: The module; one that the user gave a method of its own keeps it.
        attribute: The method's name.

    Returns:
        The class's function, copied. Where dynamo would skip its file (torch's own classes, and
        functions wrapped by torch's decorators), a function of this file that calls it.
    """
    own = own_method(owner, attribute)
    if own is not None:
        return copied(_calling_only(own))
    function = getattr(type(owner), attribute)
    if isinstance(function, FunctionType) and not _is_of_torch(function):
        return copied(function)
    return copied(_calling_class(attribute))


def own_method(owner: nn.Module, attribute: str) -> Callable[..., Any] | None:
    """Return the method that was set on ``owner`` itself, unless it is the class's all the same."""
    own: Callable[..., Any] | None = vars(owner).get(attribute)
    # Copies of a compiled module hold their class's method so: see Region.__reduce__.
    if own is None or getattr(own, "__func__", None) is getattr(type(owner), attribute):
        return None
    return own


def eager_method(owner: nn.Module, attribute: str) -> Callable[..., Any]:
    """Return the method of ``owner``'s class, bound to it."""
    return MethodType(getattr(type(owner), attribute), owner)


def _is_of_torch(function: FunctionType) -> bool:
    # Dynamo captures no frame of torch's own files, only what such a frame calls: compiling
    # nn.Sequential.forward itself would compile nothing, silently.
    return function.__code__.co_filename.startswith(_TORCH_FOLDER)


def _calling_only(method: Callable[..., Any]) -> FunctionType:
    def call(_owner: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    return call  # type: ignore[return-value]


def _calling_class(attribute: str) -> FunctionType:
    if attribute == "forward":

        def call(owner: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return type(owner).forward(owner, *args, **kwargs)
    else:

        def call(owner: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return getattr(type(owner), attribute)(owner, *args, **kwargs)

    return call  # type: ignore[return-value]


def copied(function: FunctionType) -> FunctionType:
    """Copy a function; the copy has a code object of its own, under a name of its own."""
    code = function.__code__.replace(co_name=f"{function.__code__.co_name}_{next(_numbers)}")
    copy = FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__module__ = function.__module__
    copy.__qualname__ = function.__qualname__
    return copy
