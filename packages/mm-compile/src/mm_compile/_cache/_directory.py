"""The directory of a cache: whether it can be one, and whether it can be written."""

import os
from pathlib import Path

from mm_compile._errors import ConfigError


def parse_cache(value: str | os.PathLike[str] | bool) -> Path | None:  # noqa: FBT001 - a config value
    """Read what a config has under ``cache``.

    Raises:
        ConfigError: If it is True, or no directory.
    """
    # One that cannot be written may still be read.
    if value is True:
        raise ConfigError(
            "compile.cache is True; it takes a directory here. mm-runner is what chooses one for "
            "True. Write cache='DIR', one for all runs of a project."
        )
    return None if value is False else check_directory(value, is_read=True)


def check_directory(
    value: str | os.PathLike[str], *, name: str = "compile.cache", is_read: bool = False
) -> Path:
    """Check that ``value`` can be a cache's directory; creates nothing.

    Args:
        value: The path.
        name: What it was given as, for messages.
        is_read: Whether a directory that can only be read will do.

    Raises:
        ConfigError: If it is a file, or cannot be written or created.
    """
    try:
        path = Path(value).expanduser().absolute()
    except RuntimeError as error:  # of another user, "~name"
        raise ConfigError(f"{name} is {str(value)!r}, but: {error}") from error
    if not str(value) or "\0" in str(value):
        raise ConfigError(f"{name} is {str(value)!r}; it takes the path of a directory.")
    existing = path
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        raise ConfigError(
            f"{name} is {str(value)!r}, but {existing} is a file; it takes a directory."
        )
    if not (_is_allowed(existing, os.W_OK) or (is_read and can_only_be_read(path))):
        action = "written" if existing == path else "created"
        raise ConfigError(
            f"{name} is {str(value)!r}, which cannot be {action}: {existing} is not "
            "writable. Name another directory, or change its permissions."
        )
    return path


def _is_allowed(directory: Path, access: int) -> bool:
    uses_effective = os.access in os.supports_effective_ids
    return os.access(directory, access | os.X_OK, effective_ids=uses_effective)


def can_only_be_read(path: Path) -> bool:
    """Whether code can be loaded from a directory, and none be kept there."""
    return path.is_dir() and not _is_allowed(path, os.W_OK) and _is_allowed(path, os.R_OK)
