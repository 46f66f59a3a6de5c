"""Checkpoints: content, safe reading, atomic writing, and the newest one of a directory.

A file holds tensors and Python primitives only, so that ``torch.load(weights_only=True)`` reads it
without any package of ours.
"""

from ._atomic import first_line, remove_unfinished
from ._content import FORMAT_VERSION, SHARDED_VERSION, clean_name, load_weights, plain, renamed
from ._file import load_checkpoint_file, save_checkpoint_file
from ._newest import (
    LAST_CHECKPOINT,
    checkpoints_in,
    find_latest_checkpoint,
    latest_readable,
    mark_latest,
)
from ._rng import rng_state, set_rng_state
from ._shard_folder import ShardFolder, remove_checkpoint, remove_orphaned_shards
from ._shards import SHARDS, split_shards
from ._structure import check_resumable
from ._writer import BackgroundWriter

__all__ = [
    "FORMAT_VERSION",
    "LAST_CHECKPOINT",
    "SHARDED_VERSION",
    "SHARDS",
    "BackgroundWriter",
    "ShardFolder",
    "check_resumable",
    "checkpoints_in",
    "clean_name",
    "find_latest_checkpoint",
    "first_line",
    "latest_readable",
    "load_checkpoint_file",
    "load_weights",
    "mark_latest",
    "plain",
    "remove_checkpoint",
    "remove_orphaned_shards",
    "remove_unfinished",
    "renamed",
    "rng_state",
    "save_checkpoint_file",
    "set_rng_state",
    "split_shards",
]
