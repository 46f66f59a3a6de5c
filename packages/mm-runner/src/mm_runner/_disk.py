"""What is on the disk, where it may be a share that does not answer for a while."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["identity_of", "is_gone"]


def is_gone(path: str | Path) -> bool:
    """Tell whether there is no such path; one that cannot be looked at is not gone."""
    try:
        os.stat(path)  # noqa: PTH116 - exists() takes no answer for an absence, or raises
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def identity_of(path: str | Path) -> tuple[int, int, int, int] | None:
    """Return what tells a file from another that is written in its place; ``None`` without one."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
