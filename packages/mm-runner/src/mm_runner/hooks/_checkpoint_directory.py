"""The files that are in a directory of checkpoints besides the one that is being saved."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from mm_runner.checkpoint import (
    remove_checkpoint,
    remove_orphaned_shards,
    remove_unfinished,
)

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterable

__all__ = [
    "absolute",
    "clean_directory",
    "delete_checkpoints",
    "directory_of",
]


def directory_of(out_dir: str | Path | None, work_dir: str | Path) -> Path:
    """Return where the checkpoints of a run go: runs that share an ``out_dir`` each have a folder.

    Links are not followed, so that all processes come to the same, whatever they see of them.
    """
    own = absolute(work_dir)
    if not out_dir or absolute(out_dir) == own:
        return Path(work_dir)
    return Path(out_dir) / own.name


def absolute(path: str | Path) -> Path:
    """Return the path from the root, without following links."""
    return Path(os.path.abspath(path))  # noqa: PTH100 - resolve() follows links


def clean_directory(directory: Path, logger: logging.Logger) -> None:
    """Remove what killed runs left half written, and shards that belong to no checkpoint."""
    for path in remove_unfinished(directory):
        logger.info(f"Removed {path}, which a killed run left half written.")
    for path in remove_orphaned_shards(directory):
        logger.info(f"Removed {path}, which belongs to no checkpoint.")


def delete_checkpoints(directory: Path, names: Iterable[str], logger: logging.Logger) -> None:
    """Delete superfluous checkpoints; one that cannot be deleted is only reported."""
    for name in names:
        try:
            remove_checkpoint(directory / name)
        except OSError as error:
            logger.warning(f"The superfluous {directory / name} stays: {error}")
