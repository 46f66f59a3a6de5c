"""Callbacks around each call of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from . import _torch_private as torch_private
from ._method import MethodSlot

is_compiling: Callable[[], bool] = getattr(
    getattr(torch, "compiler", None), "is_compiling", lambda: False
)


class ModelCall:
    """Runs callbacks once for each call of the model.

    A block may run several times in one forward: its calls say nothing about steps. So a model with
    compiled blocks has this in place of its ``forward``. The only region of a model that is
    compiled as a whole hands its calls here. A block called outside of the model's forward counts
    as a call.
    """

    def __init__(self, model: nn.Module, *, is_installed: bool) -> None:
        self.on_begin: list[Callable[[], None]] = []
        self.on_end: list[Callable[[Any], Any]] = []
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
        if is_compiling() or self.is_running:
            return self.__wrapped__(*args, **kwargs)
        return self.around(self.__wrapped__, args, kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        assert self._slot is not None
        return self._slot.reduce()

    def around(self, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call of the model between the callbacks."""
        if torch_private.is_in_backward():  # checkpointing repeats an earlier call
            return run(*args, **kwargs)
        for begin in tuple(self.on_begin):
            begin()
        self.is_running = True
        try:
            outputs = run(*args, **kwargs)
        finally:
            self.is_running = False
        for end in self.on_end:
            outputs = end(outputs)
        return outputs

    def remove(self) -> None:
        """Restore the model's forward, and drop the callbacks."""
        self.on_begin.clear()
        self.on_end.clear()
        if self._slot is not None:
            self._slot.clear(self)
