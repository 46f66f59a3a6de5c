"""Folders of sharded tensors: creating, locking and removing them."""

from __future__ import annotations

import re
import shutil
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

from mm_runner.errors import CheckpointError, CheckpointWriteError

from ._atomic import first_line, lock
from ._file import load_checkpoint_file
from ._shards import SHARDS

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ShardFolder", "remove_checkpoint", "remove_orphaned_shards"]

_INFIX = ".shards-"
_NAME = re.compile(rf"(.+){re.escape(_INFIX)}[0-9a-f]{{12}}", re.DOTALL)
# Locked while the folder is filled, by the process that writes the checkpoint after it.
_LOCK = "writing"


class ShardFolder:
    """A new folder for the tensors of one checkpoint, locked until it is filled.

    Args:
        path: The checkpoint.

    Attributes:
        path: The folder.

    Raises:
        CheckpointWriteError: If it cannot be made.
    """

    def __init__(self, path: Path) -> None:
        # Of its own, so that a checkpoint of this name that is there already stays whole.
        self.path = path.with_name(f"{path.name}{_INFIX}{uuid.uuid4().hex[:12]}")
        try:
            self.path.mkdir(parents=True)
            self._file = (self.path / _LOCK).open("wb")
        except OSError as error:
            raise CheckpointWriteError(
                f"Writing {path} failed: {first_line(error)} Free space or make the directory "
                "writable; the checkpoints before this one are untouched."
            ) from error
        lock(self._file)

    def close(self) -> None:
        """Release the lock: the folder is filled."""
        with suppress(OSError):
            (self.path / _LOCK).unlink()
        self._file.close()

    def remove(self) -> None:
        """Remove the unfinished folder; errors are ignored."""
        self._file.close()
        shutil.rmtree(self.path, ignore_errors=True)


def remove_checkpoint(path: Path) -> None:
    """Remove a checkpoint, with its folder if it has one.

    Raises:
        OSError: If it cannot be removed.
    """
    path.unlink(missing_ok=True)
    for folder, name in _folders_in(path.parent):
        if name == path.name and not _is_being_filled(folder):
            shutil.rmtree(folder)


def remove_orphaned_shards(directory: Path) -> list[Path]:
    """Remove the folders in ``directory`` that no checkpoint names, and return them.

    A killed run leaves such, and so does a checkpoint that was replaced. What another process is
    writing just now is locked, and stays.
    """
    removed = []
    for folder, name in _folders_in(directory):
        if not _is_being_filled(folder) and not _is_named(folder, directory / name):
            shutil.rmtree(folder, ignore_errors=True)
            removed.append(folder)
    return removed


def _folders_in(directory: Path) -> list[tuple[Path, str]]:
    """Return the folders that ShardFolder has made in ``directory``, with their checkpoints' names.

    A link is none, and neither is a folder of the user's that is called much alike.
    """
    found = [(one, _NAME.fullmatch(one.name)) for one in directory.glob(f"*{_INFIX}*")]
    return [(one, name[1]) for one, name in found if name and one.is_dir() and not one.is_symlink()]


def _is_named(folder: Path, path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        shards = load_checkpoint_file(path, outline=True).get(SHARDS)
    except CheckpointError:  # what cannot be read may yet be saved
        return True
    return isinstance(shards, dict) and shards.get("folder") == folder.name


def _is_being_filled(folder: Path) -> bool:
    try:
        with (folder / _LOCK).open("rb+") as file:
            return not lock(file)
    except OSError:
        return False
