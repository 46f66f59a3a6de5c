"""Checkpoints without what only a resumed run needs."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from mm_runner.checkpoint import load_checkpoint_file, save_checkpoint_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["publish_checkpoint"]

_CHUNK = 1 << 20


def publish_checkpoint(path: Path, keys: Sequence[str]) -> tuple[Path, list[str]]:
    """Write the entries ``keys`` of a checkpoint to a file that is named after its content.

    Returns:
        The file, ``<name>-<first 8 digits of its SHA-256>.pth``, and the keys that were not there.

    Raises:
        CheckpointError: If the checkpoint cannot be read, or the file not be written.
    """
    content = load_checkpoint_file(path)
    published = {key: content[key] for key in keys if key in content}
    unnamed = path.with_name(f"{path.stem}-published.pth")
    save_checkpoint_file(published, unnamed)
    digest = hashlib.sha256()
    with unnamed.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    named = path.with_name(f"{path.stem}-{digest.hexdigest()[:8]}.pth")
    unnamed.replace(named)
    return named, [key for key in keys if key not in content]
