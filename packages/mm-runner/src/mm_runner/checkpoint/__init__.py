"""Checkpoints: what is in them, how they are written, and which one to resume from.

A file holds tensors and Python primitives only, so that ``torch.load(weights_only=True)`` reads it
without any package of ours.
"""

from ._content import FORMAT_VERSION, clean_name, load_weights, plain
from ._file import (
    LAST_CHECKPOINT,
    find_latest_checkpoint,
    is_validated,
    latest_readable,
    load_checkpoint_file,
    mark_latest,
    mark_validated,
    save_checkpoint_file,
)
from ._rng import rng_state, set_rng_state

__all__ = [
    "FORMAT_VERSION",
    "LAST_CHECKPOINT",
    "clean_name",
    "find_latest_checkpoint",
    "is_validated",
    "latest_readable",
    "load_checkpoint_file",
    "load_weights",
    "mark_latest",
    "mark_validated",
    "plain",
    "rng_state",
    "save_checkpoint_file",
    "set_rng_state",
]
