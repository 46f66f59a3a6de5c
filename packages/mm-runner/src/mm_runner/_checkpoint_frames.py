"""Where on the stack torch's checkpointing is: what it calls, it calls again in backward."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointFunction

__all__ = ["is_checkpointed_within", "is_repetition"]

_CHECKPOINT: str = CheckpointFunction.forward.__code__.co_filename
_BACKWARD: frozenset[str] = frozenset(
    function.__code__.co_filename
    for function in (
        torch.autograd.backward,
        getattr(torch.autograd.graph, "_engine_run_backward", None),
    )
    if function is not None
)
# Of the functions that call again, in one torch or another.
_REPEATING = ("recompute_fn", "unpack_hook", "unpack", "backward")


def is_checkpointed_within(outer: Any) -> bool:
    """Return whether torch's checkpointing is between the caller of this and a frame around it.

    Args:
        outer: The frame; ``None`` for all of the stack.
    """
    frame: Any = sys._getframe(1)  # noqa: SLF001
    while frame is not None and frame is not outer:
        if frame.f_code.co_filename == _CHECKPOINT:
            return True
        frame = frame.f_back
    return False


def is_repetition() -> bool:
    """Return whether what is computed now was computed before, by the forward.

    A backward pass within a repetition is none, such as that which follows it where
    ``use_reentrant=True``.
    """
    frame: Any = sys._getframe(1)  # noqa: SLF001
    while frame is not None and frame.f_code.co_filename not in _BACKWARD:
        code = frame.f_code
        if code.co_filename == _CHECKPOINT and code.co_name in _REPEATING:
            return True
        frame = frame.f_back
    return False
