"""The states of random number generators, short enough to be compared by eye."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor

from mm_runner.checkpoint import rng_state

__all__ = ["rng_digests"]

_LENGTH = 16


def rng_digests(device: torch.device) -> dict[str, str]:
    """Return a digest of each generator's state: equal where these would draw the same.

    Args:
        device: Of this process.
    """
    return {name: _digest(state) for name, state in rng_state(device).items()}


def _digest(state: Any) -> str:
    content = bytes(state.tolist()) if isinstance(state, Tensor) else repr(state).encode()
    return hashlib.sha256(content).hexdigest()[:_LENGTH]
