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

__all__ = ["Link", "current_frame"]

_is_compiling: Callable[[], bool] = getattr(
    getattr(torch, "compiler", None), "is_compiling", lambda: False
)


def current_frame() -> Any:
    """Return the frame that calls this; ``None`` while it is compiled."""
    return None if _is_compiling() else sys._getframe(1)  # noqa: SLF001


class Link:
    """Between the two of a pair; copies of it are links between the copies.

    Attributes:
        is_open: Whether the forward that calls both is running.
        is_barred: Whether that is within a call in which they may be no pair.
        norm: The normalisation, while it is open.
        kind: The class that has that forward.
        names: Of the two there.
        given: What is on its way from one to the other.
    """

    def __init__(self) -> None:
        self.is_open = self.is_barred = False
        self.norm: Any = None
        self.kind, self.names = "", ("", "")
        self.given: Tensor | None = None
        self._taken: Any = None
        self._opened_in: Any = None
        self._barred_in: Any = None
        self._has_grad = False

    def open(self, norm: Any, kind: str, names: tuple[str, str], frame: Any) -> None:
        """Begin a forward that calls both, which runs in ``frame``."""
        self.is_open, self.norm, self.kind, self.names = True, norm, kind, names
        self._opened_in, self._has_grad = frame, torch.is_grad_enabled()

    def close(self) -> None:
        """End it."""
        self.is_open = False
        self.norm = self.given = self._taken = self._opened_in = None

    def bar(self, frame: Any) -> None:
        """Begin a call in which they may be no pair, which runs in ``frame``."""
        self.is_barred, self._barred_in = True, frame

    def unbar(self) -> None:
        """End it."""
        self.is_barred, self._barred_in = False, None

    def take(self) -> None:
        """Let what was given have arrived."""
        # Known weakly, so that it can be freed.
        self._taken = (
            self.given if _is_compiling() or self.given is None else weakref.ref(self.given)
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

    def is_repeated_unbarred(self) -> bool:
        """Return whether what is called now is repeated in backward, and the barred call is not."""
        return self.is_barred and _is_checkpointed(self._barred_in)

    def __deepcopy__(self, memo: Any) -> Link:
        return Link()

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return Link, ()


def _is_checkpointed(frame: Any) -> bool:
    return not _is_compiling() and is_checkpointed_within(frame)
