"""Checkpoints: what is in them, how they are written, and which one to resume from.

A file holds tensors and Python primitives only, so that ``torch.load(weights_only=True)`` reads it
without any package of ours.
"""

from ._atomic import remove_unfinished
from ._content import FORMAT_VERSION, PARTS_VERSION, clean_name, load_weights, plain, renamed
from ._file import load_checkpoint_file, save_checkpoint_file
from ._mmengine import Conversion, convert_mmengine_checkpoint
from ._newest import (
    LAST_CHECKPOINT,
    checkpoints_in,
    find_latest_checkpoint,
    forget_validation,
    is_validated,
    latest_readable,
    mark_latest,
    mark_validated,
)
from ._parts import PARTS, split_parts
from ._parts_folder import PartsFolder, part_name, remove_checkpoint, remove_orphaned_parts
from ._rng import rng_state, set_rng_state
from ._structure import check_resumable
from ._writer import BackgroundWriter

__all__ = [
    "FORMAT_VERSION",
    "LAST_CHECKPOINT",
    "PARTS",
    "PARTS_VERSION",
    "BackgroundWriter",
    "Conversion",
    "PartsFolder",
    "check_resumable",
    "checkpoints_in",
    "clean_name",
    "convert_mmengine_checkpoint",
    "find_latest_checkpoint",
    "forget_validation",
    "is_validated",
    "latest_readable",
    "load_checkpoint_file",
    "load_weights",
    "mark_latest",
    "mark_validated",
    "part_name",
    "plain",
    "remove_checkpoint",
    "remove_orphaned_parts",
    "remove_unfinished",
    "renamed",
    "rng_state",
    "save_checkpoint_file",
    "set_rng_state",
    "split_parts",
]
