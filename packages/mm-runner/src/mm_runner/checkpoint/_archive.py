"""Whether a file is an archive, as ``torch.save`` writes them since torch 1.6."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ARCHIVE", "has_end", "is_archive"]

# What an archive begins with.
ARCHIVE = b"PK\x03\x04"


def is_archive(path: Path) -> bool:
    """Tell whether ``path`` begins or ends as an archive; damage may have changed the other end.

    Torch goes by the beginning, and reads some whose end Python's reader does not know.
    """
    try:
        with path.open("rb") as file:
            begins = file.read(len(ARCHIVE)) == ARCHIVE
    except OSError:  # the disk does not give it
        begins = False
    return begins or has_end(path)


def has_end(path: Path) -> bool:
    """Tell whether ``path`` ends as an archive; one that was cut off does not."""
    try:
        return zipfile.is_zipfile(path)
    except zipfile.BadZipFile:  # the end of the file is damaged just so
        return False
