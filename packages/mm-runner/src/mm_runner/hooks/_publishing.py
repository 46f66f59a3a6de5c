"""Checkpoints without what only a resumed run needs."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from mm_runner.checkpoint import load_checkpoint_file, save_checkpoint_file
from mm_runner.errors import CheckpointError

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterable, Sequence
    from pathlib import Path

__all__ = ["publish_checkpoints"]

_CHUNK = 1 << 20


def publish_checkpoints(
    directory: Path, names: Iterable[str], keys: Sequence[str], logger: logging.Logger
) -> None:
    """Publish each of ``names`` with the entries ``keys``; what cannot be is only reported."""
    for name in names:
        try:
            path, missing = _publish(directory / name, keys)
        except CheckpointError as error:
            logger.error(f"published_keys: {error}")  # noqa: TRY400 - says it all
            continue
        if missing:
            logger.warning(f"published_keys: {name} has no {', '.join(map(repr, missing))}.")
        logger.info(f"{name} is published as {path.name}.")


def _publish(path: Path, keys: Sequence[str]) -> tuple[Path, list[str]]:
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
