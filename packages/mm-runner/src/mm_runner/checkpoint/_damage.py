"""What is wrong with a file that cannot be read as a checkpoint, in plain words."""

from __future__ import annotations

import pickle
import re
from typing import TYPE_CHECKING

from ._archive import ARCHIVE, has_end
from ._atomic import first_line

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["damage_of"]

# What torch.save wrote before torch 1.6 begins so.
_PICKLE = b"\x80"
_SHOWN = 16
_END_OF_SENTENCE = re.compile(r"(?<=\w)\. ")


def damage_of(path: Path, error: BaseException) -> str:
    """Return what is wrong with a file, as far as its size and first bytes tell.

    Args:
        path: The file.
        error: What the loader raised; its reason stands behind what looks like a checkpoint.
    """
    reason = _reason(error)
    if has_end(path):
        return reason or "a part of it cannot be read"
    try:
        with path.open("rb") as file:
            begin = file.read(_SHOWN)
        size = path.stat().st_size
    except OSError:  # the disk does not give it
        return reason
    # What the loader missed in a file that is no checkpoint at all would only lead astray.
    if not begin:
        return "it is empty"
    what = _cut_off(begin, size)
    if what is None:
        return f"it is no checkpoint, and begins with {_shown(begin)}"
    return f"{what} ({reason})" if reason else what


def _cut_off(begin: bytes, size: int) -> str | None:
    if begin[: len(ARCHIVE)] == ARCHIVE[: len(begin)]:
        return f"it is cut off: {size:,} bytes, no end of its archive"
    if begin.startswith(_PICKLE):
        return f"it is cut off, or a pickle that torch.save did not write: {size:,} bytes"
    return None


def _shown(begin: bytes) -> str:
    if not any(begin):
        return "zeros"
    try:
        return repr(begin.decode("ascii"))
    except UnicodeDecodeError:
        return f"the bytes {begin.hex(' ')}"


def _reason(error: BaseException) -> str:
    """Return the first sentence of the loader's text, without its advice to load unsafely."""
    text = first_line(error)
    if isinstance(error, pickle.UnpicklingError) or "weights_only" in text:
        return ""
    return _END_OF_SENTENCE.split(text)[0].rstrip(".")
