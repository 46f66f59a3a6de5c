"""Keeps a cache from growing for ever: what was not used for longest is removed.

When a bundle was last used is the time of change of its file, whose content never changes. Removing
one while another job reads it is safe: that job has it open, or compiles again. Jobs that prune at
the same time remove the same files.
"""

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ._bundle import list_bundles, list_folders

_logger = logging.getLogger(__name__)

# A large model's code is some ten megabytes in some ten bundles.
MAX_BYTES = 4 * 2**30
MAX_BUNDLES = 4096


class _Used(NamedTuple):
    when_s: float
    size: int
    path: Path


def note_use(path: Path) -> None:
    """Note that a bundle is of use now."""
    with suppress(OSError):  # it may be on a disk that can only be read, or be gone
        os.utime(path)


def prune(directory: Path, max_bytes: int = MAX_BYTES, max_bundles: int = MAX_BUNDLES) -> int:
    """Remove bundles, the longest unused ones first, until the rest is within bounds.

    Args:
        directory: The cache's directory, with the code of every torch and machine.
        max_bytes: How many bytes may stay.
        max_bundles: How many bundles may stay.

    Returns:
        How many were removed.
    """
    found = _newest_first(directory)
    kept = num_kept = 0
    for used in found:
        if num_kept == max_bundles or kept + used.size > max_bytes:
            break
        kept += used.size
        num_kept += 1
    for used in found[num_kept:]:
        with suppress(OSError):
            used.path.unlink()
    if found[num_kept:]:
        _logger.info(
            "compile: %s is full (%d bundles, %.1f GiB): the %d longest unused ones are removed.",
            directory,
            len(found),
            sum(used.size for used in found) / 2**30,
            len(found) - num_kept,
        )
    return len(found) - num_kept


def _newest_first(directory: Path) -> list[_Used]:
    found = []
    for folder in list_folders(directory):
        for path in list_bundles(folder):
            with suppress(FileNotFoundError):
                state = path.stat()
                found.append(_Used(state.st_mtime, state.st_size, path))
    return sorted(found, reverse=True)
