"""Atomic writing of files, locks on them, and removal of unfinished ones."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mm_runner.errors import CheckpointWriteError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["first_line", "lock", "remove_unfinished", "write_atomically"]

_SUFFIX = ".unfinished"


def write_atomically(path: Path, write: Callable[[Any], object]) -> None:
    """Write a file beside ``path``, flush it to the disk, and rename it.

    Args:
        path: The file; its directory is created if it is not there.
        write: Called with the open binary file.

    Raises:
        CheckpointWriteError: If that failed; what was there before is untouched.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}{_SUFFIX}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("wb") as file:
            lock(file)
            write(file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        _sync_directory(path.parent)
    except BaseException as error:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        if not isinstance(error, (OSError, RuntimeError)):  # torch calls a full disk RuntimeError
            raise
        raise CheckpointWriteError(
            f"Writing {path} failed: {first_line(error).rstrip('.')}. Free space or make the "
            "directory writable; the checkpoints before this one are untouched."
        ) from error


def remove_unfinished(directory: Path) -> list[Path]:
    """Remove files of ``directory`` that killed processes left unfinished, and return them.

    A file that another process is writing is locked, and stays. Where files cannot be locked, all
    stay.
    """
    removed = []
    for path in directory.glob(f".*{_SUFFIX}"):
        with suppress(OSError), path.open("rb+") as file:
            if lock(file):
                path.unlink()
                removed.append(path)
    return removed


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or its class without one."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def lock(file: Any) -> bool:
    """Lock ``file`` until it is closed or the process ends; return whether that worked."""
    try:
        import fcntl  # noqa: PLC0415 - not on Windows

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True


def _sync_directory(directory: Path) -> None:
    """Flush a directory to the disk, so that a rename in it survives a power cut."""
    if os.name == "nt":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
