"""The directories of a run."""

from __future__ import annotations

import tempfile
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from mm_runner._main_process import run_on_main
from mm_runner.errors import ConfigError, WorkDirError

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
        ConfigError: If ``work_dir`` is no path.
        WorkDirError: On all processes, if the directory cannot be written.
    """
    if not isinstance(work_dir, (str, Path)):
        raise ConfigError(f"work_dir: the path of a directory is needed, got {work_dir!r}.")
    return run_on_main(lambda: _open(Path(work_dir)))


def _open(work_dir: Path) -> WorkDir:
    try:
        return WorkDir(*_create(work_dir.absolute()))
    except OSError as error:
        raise WorkDirError(
            f"work_dir={str(work_dir)!r} was asked for; it cannot be written: {error}. "
            "Give a directory that you may write to."
        ) from error


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
