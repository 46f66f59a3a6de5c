"""Names and deletion of the files in a directory of checkpoints, and published copies."""

from __future__ import annotations

import hashlib
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
    from pathlib import Path

__all__ = ["clean", "delete", "is_of_template", "publish"]


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
            logger.warning(f"The outdated checkpoint {path} could not be deleted: {error}")


def publish(paths: Iterable[Path], keys: Sequence[str], logger: logging.Logger) -> None:
    """Write entries of checkpoints to files named after their SHA-256; report what fails."""
    for path in paths:
        unnamed = path.with_name(f"{path.stem}-published.pth")
        try:
            content = load_checkpoint_file(path)
            save_checkpoint_file({key: content[key] for key in keys if key in content}, unnamed)
        except CheckpointError as error:
            logger.error(f"published_keys: {error}")  # noqa: TRY400 - says it all
            continue
        digest = hashlib.sha256(unnamed.read_bytes()).hexdigest()
        named = unnamed.replace(path.with_name(f"{path.stem}-{digest[:8]}.pth"))
        missing = [repr(key) for key in keys if key not in content]
        if missing:
            logger.warning(f"published_keys: {path.name} has no {', '.join(missing)}.")
        logger.info(f"{path.name} is published as {named.name}.")
