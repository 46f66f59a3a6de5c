"""What a convolution and its normalisation know of one another while their model computes."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from mm_runner._checkpoint_frames import is_checkpointed_within

__all__ = ["Link", "current_frame", "is_compiling"]

is_compiling: Callable[[], bool] = getattr(
    getattr(torch, "compiler", None), "is_compiling", lambda: False
)


def current_frame() -> Any:
    """Return the frame that calls this; ``None`` while it is compiled."""
    return None if is_compiling() else sys._getframe(1)  # noqa: SLF001


class Link:
    """Between the two of a pair; copies of it are links between the copies.

    Attributes:
        is_open: Whether the forward that calls both is running.
        norm: The normalisation, while it is open.
        kind: The class that has that forward.
        names: Of the two there.
        given: What is on its way from one to the other.
    """

    def __init__(self) -> None:
        self.is_open = self._is_known = False
        self.norm: Any = None
        self.kind, self.names = "", ("", "")
        self.given: Tensor | None = None
        self._taken: Any = None
        self._opened_in: Any = None
        self._known_in: Any = None
        self._has_grad = False

    def open(self, norm: Any, kind: str, names: tuple[str, str], frame: Any) -> None:
        """Begin a forward that calls both, which runs in ``frame``."""
        self.is_open, self.norm, self.kind, self.names = True, norm, kind, names
        self._opened_in, self._has_grad = frame, torch.is_grad_enabled()

    def close(self) -> None:
        """End it."""
        self.is_open = False
        self.norm = self.given = self._taken = self._opened_in = None

    def begin_known(self, frame: Any) -> tuple[bool, Any]:
        """Begin a call in which they are a pair, which runs in ``frame``.

        Returns:
            What is to be given to :meth:`end_known`.
        """
        before = (self._is_known, self._known_in)
        self._is_known, self._known_in = True, frame
        return before

    def end_known(self, before: tuple[bool, Any]) -> None:
        """End it."""
        self._is_known, self._known_in = before

    def is_known(self) -> bool:
        """Return whether they are a pair in what is called now.

        A call that is not repeated with it in backward says nothing: both times they are the same.
        """
        return self._is_known and not _is_checkpointed(self._known_in)

    def take(self) -> None:
        """Let what was given have arrived."""
        # Known weakly, so that it can be freed.
        self._taken = (
            self.given if is_compiling() or self.given is None else weakref.ref(self.given)
        )
        self.given = None

    def was_taken(self, tensor: Tensor) -> bool:
        """Return whether ``tensor`` is what arrived in this forward."""
        taken = self._taken
        return (taken() if isinstance(taken, weakref.ref) else taken) is tensor

    def has_gradients_of_caller(self) -> bool:
        """Return whether gradients are recorded as where the forward began.

        In its first run, checkpointing of some kinds switches them off.
        """
        return torch.is_grad_enabled() == self._has_grad

    def is_repeated_alone(self) -> bool:
        """Return whether what is called now is repeated in backward, and the forward is not."""
        return _is_checkpointed(self._opened_in)

    def __deepcopy__(self, memo: Any) -> Link:
        return Link()

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return Link, ()


def _is_checkpointed(frame: Any) -> bool:
    return not is_compiling() and is_checkpointed_within(frame)
