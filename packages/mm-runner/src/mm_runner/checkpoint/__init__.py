"""Checkpoints: content, safe reading, atomic writing, and the newest one of a directory.

A file holds tensors and Python primitives only, so that ``torch.load(weights_only=True)`` reads it
without any package of ours.
"""

from ._content import (
    FORMAT_VERSION,
    clean_name,
    first_line,
    load_weights,
    own_names,
    plain,
    renamed,
    rng_state,
    saved_names,
    set_rng_state,
)
from ._functions import load_checkpoint, save_checkpoint
from ._loading import (
    LAST_CHECKPOINT,
    check_resumable,
    checkpoints_in,
    find_latest_checkpoint,
    latest_readable,
    mark_latest,
)
from ._reading import read_file
from ._shards import (
    SHARDS,
    ShardWriter,
    load_checkpoint_file,
    read_shards,
    remove_checkpoint,
    remove_leftovers,
)
from ._writing import BackgroundWriter, save_checkpoint_file, write_error

__all__ = [
    "FORMAT_VERSION",
    "LAST_CHECKPOINT",
    "SHARDS",
    "BackgroundWriter",
    "ShardWriter",
    "check_resumable",
    "checkpoints_in",
    "clean_name",
    "find_latest_checkpoint",
    "first_line",
    "latest_readable",
    "load_checkpoint",
    "load_checkpoint_file",
    "load_weights",
    "mark_latest",
    "own_names",
    "plain",
    "read_file",
    "read_shards",
    "remove_checkpoint",
    "remove_leftovers",
    "renamed",
    "rng_state",
    "save_checkpoint",
    "save_checkpoint_file",
    "saved_names",
    "set_rng_state",
    "write_error",
]
