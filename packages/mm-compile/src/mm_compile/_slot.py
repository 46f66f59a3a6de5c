"""The place of a method on one module, where something else stands for it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any
from weakref import ref

from torch import nn

from ._code import eager_method, own_method


class MethodSlot:
    """What lies on a module under a method's name, and finds its way back.

    A copy of the module holds the class's own method in that place, and no trace of this package.

    Args:
        module: The module; it is not kept alive.
        attribute: The method's name.
    """

    def __init__(self, module: nn.Module, attribute: str) -> None:
        self.of = ref(module)
        self._attribute = attribute
        self._previous = vars(module).get(attribute)
        self._own = own_method(module, attribute)

    @property
    def module(self) -> nn.Module:
        """The module, while it lives."""
        module = self.of()
        assert module is not None  # it holds what stands here
        return module

    @property
    def eager(self) -> Callable[..., Any]:
        """The method itself: the user's own on this module, or the class's."""
        return self._own or eager_method(self.module, self._attribute)

    def fill(self, stand_in: object) -> None:
        """Put something in the method's place."""
        setattr(self.of(), self._attribute, stand_in)

    def clear(self, stand_in: object) -> None:
        """Take it out again, unless somebody replaced it since; theirs stays then."""
        module = self.of()
        if module is None or vars(module).get(self._attribute) is not stand_in:
            return
        delattr(module, self._attribute)
        if self._previous is not None:
            setattr(module, self._attribute, self._previous)

    def reduced(self) -> tuple[Any, ...]:
        """Return what ``__reduce__`` of the stand-in does; also for ``copy.deepcopy``."""
        # The copy must compute with its own parameters.
        if self._own is not None:
            return copy.copy, (self._own,)
        return getattr, (self.of(), self._attribute)
