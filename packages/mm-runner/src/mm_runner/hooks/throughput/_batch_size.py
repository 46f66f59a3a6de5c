"""How much is in a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from mm_runner.errors import ConfigError

__all__ = ["count_samples", "count_tokens"]


def count_samples(batch: Any) -> int:
    """Return the number of samples, as the first entry of the batch tells.

    That entry is a tensor of all samples, or a list of one thing per sample; a list of dicts is a
    list of samples itself.

    Example:
        >>> count_samples({"inputs": torch.ones(8, 3), "labels": torch.ones(8)})
        8
    """
    first = batch
    if isinstance(batch, Mapping):
        first = next(iter(batch.values()), None)
    elif isinstance(batch, (tuple, list)) and batch:
        first = batch[0]
    if isinstance(first, Tensor):
        return len(first) if first.ndim else 1
    if isinstance(first, (tuple, list)):
        return len(first)
    return len(batch) if isinstance(batch, (tuple, list)) else 1


def count_tokens(batch: Any, tokens: str | Callable[[Any], int]) -> int:
    """Return the number of tokens.

    Args:
        batch: As the loader gives it.
        tokens: The key of a tensor whose elements they are, or a function of the batch.

    Raises:
        ConfigError: If the batch has no tensor under that key.
    """
    if not isinstance(tokens, str):
        return int(tokens(batch))
    found = batch.get(tokens) if isinstance(batch, Mapping) else None
    if not isinstance(found, Tensor):
        held = ", ".join(map(repr, batch)) if isinstance(batch, Mapping) else type(batch).__name__
        raise ConfigError(
            f"ThroughputHook.tokens: {tokens!r} is no tensor of the batch; it has {held}. Give a "
            "key, or a function of the batch."
        )
    return found.numel()
