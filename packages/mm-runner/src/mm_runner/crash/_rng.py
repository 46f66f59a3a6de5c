"""The states of random number generators, short enough to be compared by eye."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from mm_runner.checkpoint import rng_state

__all__ = ["rng_digests"]

_LENGTH = 16


def rng_digests(device: torch.device) -> dict[str, str]:
    """Return a digest of each generator's state: equal where these would draw the same.

    One that cannot be read is left out, for the others' sake.

    Args:
        device: Of this process.
    """
    try:
        states = rng_state(device)
    except Exception:  # noqa: BLE001 - a device that failed may answer nothing
        states = rng_state(torch.device("cpu"))
    digests = {}
    for name, state in states.items():
        with suppress(Exception):
            digests[name] = _digest(state)
    return digests


def _digest(state: Any) -> str:
    content = bytes(state.tolist()) if isinstance(state, Tensor) else repr(state).encode()
    return hashlib.sha256(content).hexdigest()[:_LENGTH]
