"""Recognize models of torch's first FSDP, ``FullyShardedDataParallel``, without importing it."""

import sys
from typing import Any


def first_fsdp_modules(model: Any) -> list[Any]:
    """Return the modules of ``model``, itself included, that torch's first FSDP wraps."""
    # Importing it takes seconds; where it was never imported, nothing can be one.
    module = sys.modules.get("torch.distributed.fsdp")
    wrapper = getattr(module, "FullyShardedDataParallel", None)
    if wrapper is None or not hasattr(model, "modules"):
        return []
    return [part for part in model.modules() if isinstance(part, wrapper)]


def contains_first_fsdp(model: Any) -> bool:
    """Whether ``model`` is, or contains, a model of torch's first FSDP."""
    return bool(first_fsdp_modules(model))
