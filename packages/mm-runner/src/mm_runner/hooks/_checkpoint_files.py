"""Names and deletion of the files in a directory of checkpoints, and published copies."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from mm_runner._untrusted import is_file_name
from mm_runner.checkpoint import (
    load_checkpoint_file,
    remove_checkpoint,
    remove_orphaned_shards,
    remove_unfinished,
    save_checkpoint_file,
)
from mm_runner.errors import CheckpointError

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterable, Sequence

__all__ = ["absolute", "clean", "delete", "is_of_template", "publish"]

_CHUNK = 1 << 20


def absolute(path: str | Path) -> Path:
    """Return the path from the root, without following links: all processes find the same."""
    return Path(os.path.abspath(path))  # noqa: PTH100 - resolve() follows links


def is_of_template(name: str, template: str) -> bool:
    """Return whether ``name`` is a file name that ``template`` gives for some number."""
    before, _, after = template.partition("{}")
    number = name.removeprefix(before).removesuffix(after)
    return number.isdecimal() and name == f"{before}{number}{after}" and is_file_name(name)


def clean(directory: Path, logger: logging.Logger) -> None:
    """Remove what killed runs left half written, and shards that belong to no checkpoint."""
    for path in remove_unfinished(directory):
        logger.info(f"Removed {path}, which a killed run left half written.")
    for path in remove_orphaned_shards(directory):
        logger.info(f"Removed {path}, which belongs to no checkpoint.")


def delete(paths: Iterable[Path], logger: logging.Logger) -> None:
    """Delete checkpoints; one that cannot be deleted is only reported."""
    for path in paths:
        try:
            remove_checkpoint(path)
        except OSError as error:
            logger.warning(f"The superfluous {path} stays: {error}")


def publish(paths: Iterable[Path], keys: Sequence[str], logger: logging.Logger) -> None:
    """Write entries of checkpoints to files named after their SHA-256; report what fails."""
    for path in paths:
        try:
            content = load_checkpoint_file(path)
            published = {key: content[key] for key in keys if key in content}
            unnamed = path.with_name(f"{path.stem}-published.pth")
            save_checkpoint_file(published, unnamed)
        except CheckpointError as error:
            logger.error(f"published_keys: {error}")  # noqa: TRY400 - says it all
            continue
        digest = hashlib.sha256()
        with unnamed.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
        named = path.with_name(f"{path.stem}-{digest.hexdigest()[:8]}.pth")
        unnamed.replace(named)
        missing = [repr(key) for key in keys if key not in content]
        if missing:
            logger.warning(f"published_keys: {path.name} has no {', '.join(missing)}.")
        logger.info(f"{path.name} is published as {named.name}.")
