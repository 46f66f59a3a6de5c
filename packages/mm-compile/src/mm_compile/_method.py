"""Replacing a method on one module, and functions with code objects that nothing else shares.

Dynamo keeps compiled code, its limit of recompilations and what it learned about changing shapes
per code object. Blocks of one class but different sizes share one ``forward``: without code objects
for each kind they would use up one limit together and teach each other shapes.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any
from weakref import ref

import torch
from torch import nn

_TORCH_FOLDER = os.path.dirname(torch.__file__) + os.sep  # noqa: PTH120 - compared as text
_num_copies = [0]  # dynamo copies an itertools.count, which Python 3.13 warns of


class MethodSlot:
    """The place of a method in a module's ``__dict__``.

    A copy of the module gets the class's own method there.
    """

    def __init__(self, module: nn.Module, attribute: str) -> None:
        self.of = ref(module)
        self._attribute = attribute
        self._previous = vars(module).get(attribute)
        self._instance_method = instance_method(module, attribute)

    @property
    def module(self) -> nn.Module:
        """The module, which must be alive."""
        module = self.of()
        assert module is not None  # it holds the replacement
        return module

    @property
    def eager(self) -> Callable[..., Any]:
        """The original method: the module's, or the class's bound to the module."""
        module = self.module
        return self._instance_method or MethodType(getattr(type(module), self._attribute), module)

    def fill(self, replacement: object) -> None:
        """Install a replacement."""
        setattr(self.of(), self._attribute, replacement)

    def clear(self, replacement: object) -> None:
        """Remove the replacement, unless somebody has replaced it since."""
        module = self.of()
        if module is None or vars(module).get(self._attribute) is not replacement:
            return
        delattr(module, self._attribute)
        if self._previous is not None:
            setattr(module, self._attribute, self._previous)

    def reduce(self) -> tuple[Any, ...]:
        """Return the ``__reduce__`` of a replacement: copies compute with their own parameters."""
        if self._instance_method is not None:
            return copy.copy, (self._instance_method,)
        return getattr, (self.of(), self._attribute)


def instance_method(module: nn.Module, attribute: str) -> Callable[..., Any] | None:
    """Return the method that was set on ``module`` itself, unless it is the class's."""
    found: Callable[..., Any] | None = vars(module).get(attribute)
    # Copies of a compiled module hold their class's method: see MethodSlot.reduce.
    if found is None or getattr(found, "__func__", None) is getattr(type(module), attribute):
        return None
    return found


def function_of(module: nn.Module, attribute: str) -> FunctionType:
    """Return a function ``call(module, *args, **kwargs)`` with a code object of its own.

    It is a copy of the class's function. Dynamo skips torch's own files: for classes of torch, and
    functions wrapped by torch's decorators, it is a function of this file that calls theirs.
    """
    method = instance_method(module, attribute)
    if method is not None:
        return copy_function(_calling_only(method))
    function = getattr(type(module), attribute)
    is_plain = isinstance(function, FunctionType)
    if is_plain and not function.__code__.co_filename.startswith(_TORCH_FOLDER):
        return copy_function(function)
    return copy_function(_calling_class(attribute))


def copy_function(function: FunctionType) -> FunctionType:
    """Copy a function together with its code object, which gets a unique name."""
    _num_copies[0] += 1
    code = function.__code__.replace(co_name=f"{function.__code__.co_name}_{_num_copies[0]}")
    copied = FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    copied.__module__ = function.__module__
    copied.__qualname__ = function.__qualname__
    return copied


def _calling_only(method: Callable[..., Any]) -> FunctionType:
    def call(_module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    return call  # type: ignore[return-value]


def _calling_class(attribute: str) -> FunctionType:
    if attribute == "forward":

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return type(module).forward(module, *args, **kwargs)
    else:

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return getattr(type(module), attribute)(module, *args, **kwargs)

    return call  # type: ignore[return-value]
