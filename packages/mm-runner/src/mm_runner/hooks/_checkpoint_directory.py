"""The files that are in a directory of checkpoints besides the one that is being saved."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mm_runner.checkpoint import (
    check_resumable,
    forget_validation,
    load_checkpoint_file,
    remove_checkpoint,
    remove_orphaned_parts,
    remove_unfinished,
)
from mm_runner.errors import CheckpointError

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterable

__all__ = [
    "absolute",
    "best_records_in",
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


def clean_directory(directory: Path, work_dir: Path, logger: logging.Logger) -> None:
    """Remove what killed runs left half written, and parts that belong to no checkpoint."""
    for path in remove_unfinished(directory):
        logger.info(f"Removed {path}, which a killed run left half written.")
        if path.name.startswith(".best_"):  # by a thread: its validation was over by then
            forget_validation(work_dir)
    for path in remove_orphaned_parts(directory):
        logger.info(f"Removed {path}, which belongs to no checkpoint.")


def delete_checkpoints(directory: Path, names: Iterable[str], logger: logging.Logger) -> None:
    """Delete superfluous checkpoints; one that cannot be deleted is only reported."""
    for name in names:
        try:
            remove_checkpoint(directory / name)
        except OSError as error:
            logger.warning(f"The superfluous {directory / name} stays: {error}")


def best_records_in(paths: Iterable[Path], key: str, run: str) -> list[dict[str, Any]]:
    """Return what the files of the best models of a run say of themselves.

    Args:
        paths: The files; those of other runs, and unreadable ones, are left out.
        key: The checkpoint's entry of the hook that saved them.
        run: The run's name, as the hook wrote it.

    Returns:
        For each file its records, by the name of the metric.
    """
    found = []
    for path in paths:
        with suppress(CheckpointError, OSError):
            content = load_checkpoint_file(path)
            check_resumable(content, path)
            state = content.get(key, {})
            own = {
                metric: record
                for metric, record in state.get("best", {}).items()
                if record.get("file") == path.name and state.get("run") == run
            }
            found.append(own)
    return found
