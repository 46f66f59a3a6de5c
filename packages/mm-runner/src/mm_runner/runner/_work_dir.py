"""The directories of a run."""

from __future__ import annotations

import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import mm_dist
from mm_runner.errors import WorkDirError

__all__ = ["WorkDir", "open_work_dir"]


class WorkDir(NamedTuple):
    """Where a run writes: checkpoints to ``path``, the rest to ``log_dir`` inside it."""

    path: Path
    log_dir: Path
    timestamp: str


def open_work_dir(work_dir: str | Path) -> WorkDir:
    """Create ``work_dir`` and in it a directory of this run's own, and check that it is writable.

    Only the main process touches the disk; what it found is what every process gets.

    Raises:
        WorkDirError: On all processes, if the directory cannot be written.
    """
    found: list[Any] = [None, None]
    if mm_dist.is_main_process():
        try:
            found[0] = _create(Path(work_dir).absolute())
        except OSError as error:
            found[1] = (
                f"work_dir={str(work_dir)!r} was asked for; it cannot be written: {error}. "
                "Give a directory that you may write to."
            )
    mm_dist.broadcast_object_list(found)
    if found[1] is not None:
        raise WorkDirError(found[1])
    return WorkDir(*found[0])


def _create(path: Path) -> tuple[Path, Path, str]:
    path.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=path):
        pass  # permission bits do not tell: ask the file system
    started = datetime.now().astimezone().strftime("%Y%m%d_%H%M%S")
    for attempt in range(1000):
        # A second run started in the same second must not write into the first one's logs.
        timestamp = f"{started}_{attempt}" if attempt else started
        try:
            (path / timestamp).mkdir()
        except FileExistsError:
            continue
        return path, path / timestamp, timestamp
    raise FileExistsError(f"{path / started} and 999 more like it exist")
