"""Checks of a checkpoint file before it is read, and messages about one that cannot be.

``torch.save`` writes a CRC-32 of every record of its archive, tensors included, and its own reader
checks none.
"""

from __future__ import annotations

import os
import pickle
import re
import zipfile
from typing import TYPE_CHECKING

from mm_runner.errors import CheckpointError

from ._atomic import first_line

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["check_archive", "check_exists", "damaged", "is_archive", "refused_global"]

# What an archive begins with, and what torch.save wrote before torch 1.6.
_ARCHIVE = b"PK\x03\x04"
_PICKLE = b"\x80"
_CHUNK = 1 << 20
# In the attributes of a record; torch's reader reads nothing of it then, and returns any memory.
_IS_DIRECTORY = 0x10
# The end of an archive's directory, with the locator before it that large archives have.
_END = 20 + 22
_IN_LOCATOR = 0xFFFFFFFF
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
# "Unsupported class" is how torch older than 2.1 says it.
_GLOBAL = re.compile(r"(?:GLOBAL|Unsupported class) ([\w.]*\w)")


def check_exists(path: Path) -> None:
    """Raise a CheckpointError if there is no such file."""
    if not os.path.isfile(path):  # noqa: PTH113 - is_file() raises if the name is too long
        raise CheckpointError(f"The checkpoint {path} was asked for; there is no such file.")


def is_archive(path: Path) -> bool:
    """Return whether ``path`` begins or ends as an archive; damage may have changed the other end.

    Torch goes by the beginning, and reads some whose end Python's reader does not know.
    """
    return _begin_of(path).startswith(_ARCHIVE) or _has_end(path)


def check_archive(path: Path, *, whole: bool = True) -> None:
    """Compare every record of an archive with its checksum, and their sizes with the file's.

    A record without one is passed over: ``torch.serialization.set_crc32_options(False)`` leaves
    them out.

    Args:
        path: The file.
        whole: Read the records; else only the directory.

    Raises:
        CheckpointError: If one differs, or the file is cut off, or holds a program.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            records = archive.infolist()
            _check_directory(path, records, archive.start_dir)
            for record in (one for one in records if one.CRC != 0 and whole):
                with archive.open(record) as stream:
                    while stream.read(_CHUNK):  # compares at the end
                        pass
    except CheckpointError:
        raise
    except Exception as error:  # damaged bytes make the reader fail in any way
        raise damaged(path, error) from error


def _check_directory(path: Path, records: list[zipfile.ZipInfo], directory: int) -> None:
    """Refuse a program, records larger than the file, and a second directory."""
    if any(record.filename.endswith("/constants.pkl") for record in records):
        raise CheckpointError(
            f"{path} is a TorchScript program; a checkpoint is needed. Load the program with "
            "torch.jit.load, and save its state_dict."
        )
    if any(record.external_attr & _IS_DIRECTORY for record in records):
        raise CheckpointError(f"{path} is damaged: a record is marked as a directory.")
    num_bytes, unpacked = path.stat().st_size, sum(record.file_size for record in records)
    if unpacked > num_bytes:
        raise CheckpointError(
            f"{path} unpacks to {unpacked:,} bytes, and the file has {num_bytes:,}; torch.save "
            "compresses nothing. Unpack it and save it again with torch.save, if you trust it."
        )
    with path.open("rb") as file:
        file.seek(-_END, os.SEEK_END)
        end = file.read()
        begin = int.from_bytes(end[-6:-2], "little")
        if begin == _IN_LOCATOR:  # it is in the record that the locator before names
            file.seek(int.from_bytes(end[8:16], "little") + 48)
            begin = int.from_bytes(file.read(8), "little")
    # Readers differ in where they look for it, so that each could find another one.
    if begin != directory:
        raise CheckpointError(f"{path} is damaged: its directory is not where its end says.")


def damaged(path: Path, error: BaseException) -> CheckpointError:
    """Return the error for an unreadable file, described by its size and first bytes.

    Args:
        path: The file.
        error: Raised by the loader; its reason follows what looks like a checkpoint.
    """
    begin, what = _begin_of(path), first_line(error).split(". ")[0].rstrip(".")
    if isinstance(error, pickle.UnpicklingError) or "weights_only" in what:
        what = "a part of it cannot be read"  # torch advises to load it unsafely
    if not begin:
        what = "it is empty"
    elif not _has_end(path):
        if begin.startswith((_ARCHIVE[: len(begin)], _PICKLE)):
            size = f"{path.stat().st_size:,} bytes"
            what = f"it is cut off: {size}, no end of its archive ({what})"
        else:
            what = f"it is no checkpoint, and begins with {begin!r}"
    return CheckpointError(f"{path} is damaged: {what}.")


def refused_global(error: BaseException) -> str | None:
    """Return the function or class that a file names and the loader does not take, if that is it.

    Example:
        >>> refused_global(ValueError("Unsupported global: GLOBAL posix.system was not an allowed"))
        'posix.system'
    """
    found = _GLOBAL.search(_ESCAPE.sub("", str(error)))
    return found[1] if found else None


def _begin_of(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(16)
    except OSError:  # the disk does not give it
        return b""


def _has_end(path: Path) -> bool:
    """Return whether ``path`` ends as an archive; one that was cut off does not."""
    try:
        return zipfile.is_zipfile(path)
    except (zipfile.BadZipFile, OSError):  # the end of the file is damaged just so
        return False
