"""The call of a model as a whole, whichever of its compiled parts run in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ._slot import MethodSlot
from ._surroundings import is_in_backward

_is_compiling: Callable[[], bool] = getattr(
    getattr(torch, "compiler", None), "is_compiling", lambda: False
)


class OutermostCall:
    """Tells when the model is called, once for each call of it.

    A block may run several times in one forward, or not in every one: its calls say nothing about
    steps. So a model with compiled blocks has this in place of its own ``forward``; it costs a
    microsecond. Where a block runs outside of that (a caller who leaves ``forward`` out), the
    block's call counts. A whole model's one region hands its calls here as well.

    Args:
        model: The model.
        is_installed: Whether to lie in place of its ``forward``.

    Attributes:
        listeners: Called, in order, when a call begins.
        keepers: Given what a call returns; each returns what its caller gets instead.
        is_running: Whether a call is under way.
    """

    def __init__(self, model: nn.Module, *, is_installed: bool) -> None:
        self.listeners: list[Callable[[], None]] = []
        self.keepers: list[Callable[[Any], Any]] = []
        self.is_running = False
        self._slot = MethodSlot(model, "forward") if is_installed else None
        if self._slot is not None:
            self._slot.fill(self)

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The model's own method, where ``inspect.signature`` looks for it."""
        assert self._slot is not None
        return self._slot.eager

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _is_compiling() or self.is_running:
            return self.__wrapped__(*args, **kwargs)
        return self.around(self.__wrapped__, args, kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        assert self._slot is not None
        return self._slot.reduced()

    def around(self, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run what the model is called for."""
        if is_in_backward():  # it repeats a call for checkpointing
            return run(*args, **kwargs)
        for tell in tuple(self.listeners):
            tell()
        self.is_running = True
        try:
            outputs = run(*args, **kwargs)
        finally:
            self.is_running = False
        for keep in self.keepers:
            outputs = keep(outputs)
        return outputs

    def forget(self, listener: Callable[[], None]) -> None:
        """Tell a listener nothing more."""
        if listener in self.listeners:
            self.listeners.remove(listener)

    def remove(self) -> None:
        """Leave the model's place, and tell nobody anything more."""
        self.listeners.clear()
        self.keepers.clear()
        if self._slot is not None:
            self._slot.clear(self)
