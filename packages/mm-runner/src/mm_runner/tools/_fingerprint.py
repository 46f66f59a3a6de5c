"""Short texts that stand for the bits of a value."""

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

    Args:
        value: A batch, a buffer, or the state of a generator.
    """
    digest = hashlib.blake2b(digest_size=8)
    _feed(digest, value, set())
    return digest.hexdigest()


def _feed(digest: Any, value: Any, seen: set[int]) -> None:
    digest.update(type(value).__name__.encode())
    if isinstance(value, Tensor):
        _feed_tensor(digest, value)
    elif value is None or isinstance(value, (bool, int, float, str, bytes)):
        digest.update(repr(value).encode())
    elif type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
        digest.update(f"{value.dtype}{value.shape}".encode() + value.tobytes())
    elif id(value) not in seen:
        seen.add(id(value))
        for part in _parts(value):
            _feed(digest, part, seen)


def _feed_tensor(digest: Any, value: Tensor) -> None:
    # By torch's own serialisation: NumPy need not be there, and it knows every type.
    file = io.BytesIO()
    torch.save(value.detach().cpu().contiguous().clone(), file)
    digest.update(file.getvalue())


def _parts(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return [part for item in value.items() for part in item]
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, (set, frozenset)):
        return sorted(map(fingerprint, value))
    return list(getattr(value, "__dict__", {}).items())  # a data sample of the user's own class
