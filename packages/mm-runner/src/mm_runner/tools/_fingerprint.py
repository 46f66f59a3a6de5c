"""Hashes of batches, outputs and generator states."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["fingerprint"]


def fingerprint(value: Any) -> str:
    """Return a text that is the same for values of the same bits.

    Tensors, arrays and primitives count, in containers and objects of any depth; of anything else
    only its class.
    """
    digest = hashlib.blake2b(digest_size=8)
    _feed(digest, value, set())
    return digest.hexdigest()


def _feed(digest: Any, value: Any, seen: set[int]) -> None:
    digest.update(type(value).__name__.encode())
    if isinstance(value, Tensor):  # by torch's serialisation: NumPy does not know every dtype
        file = io.BytesIO()
        torch.save(value.detach().cpu().contiguous().clone(), file)
        digest.update(file.getvalue())
    elif value is None or isinstance(value, (bool, int, float, str, bytes)):
        digest.update(repr(value).encode())
    elif type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
        digest.update(f"{value.dtype}{value.shape}".encode() + value.tobytes())
    elif id(value) not in seen:
        seen.add(id(value))
        if not isinstance(value, (Mapping, list, tuple)):
            value = getattr(value, "__dict__", {})  # a data sample of the user's own class
        for part in value.items() if isinstance(value, Mapping) else value:
            _feed(digest, part, seen)
