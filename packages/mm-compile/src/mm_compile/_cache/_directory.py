"""The directory of a cache: whether it can be one, can be written, and who else writes there."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mm_compile._errors import ConfigError
from mm_compile._suggestion import suggest

_KEYS = ("dir", "trusted")


def parse_cache(
    value: str | os.PathLike[str] | bool | Mapping[str, Any],  # noqa: FBT001 - a config value
) -> tuple[Path | None, bool]:
    """Read what a config has under ``cache``.

    Returns:
        The directory or None, and whether code is taken from whoever can write there.

    Raises:
        ConfigError: If it is True, or no directory.
    """
    if isinstance(value, Mapping):
        return _parse_dict(value)
    # One that cannot be written may still be read.
    if value is True:
        raise ConfigError(
            "compile.cache is True; it takes a directory here. mm-runner is what chooses one for "
            "True. Write cache='DIR', one for all runs of a project."
        )
    return None if value is False else check_directory(value, is_read=True), False


def _parse_dict(value: Mapping[str, Any]) -> tuple[Path, bool]:
    for key in value:
        if key not in _KEYS:
            raise ConfigError(f"compile.cache has no key {key!r}. {suggest(key, _KEYS)}")
    directory, is_trusted = value.get("dir"), value.get("trusted", False)
    if not isinstance(directory, (str, os.PathLike)):
        raise ConfigError(f"compile.cache.dir is {directory!r}; it takes a directory.")
    if not isinstance(is_trusted, bool):
        raise ConfigError(f"compile.cache.trusted is {is_trusted!r}; it takes True or False.")
    return check_directory(directory, is_read=True), is_trusted


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


def distrust_reason(state: os.stat_result) -> str | None:
    """Say which other user can write a file or directory, or return None.

    Compiled code is run: whoever can write it runs code as this user.

    Args:
        state: What ``os.stat`` says of it.
    """
    if not hasattr(os, "geteuid"):  # Windows: permissions are not told by modes
        return None
    if state.st_uid not in (0, os.geteuid()):
        return f"it belongs to user {state.st_uid}, not to you"
    if state.st_mode & 0o022:
        return f"its mode {state.st_mode & 0o7777:o} lets group or others write"
    return None


def refusal_of(path: Path) -> str | None:
    """Say in one line why no code is taken from a directory, or return None."""
    if not path.exists() or (reason := distrust_reason(path.stat())) is None:
        return None
    return (
        f"code in {path} is not trusted: {reason}. Make it yours alone (chown, chmod go-w), or set "
        "cache=dict(dir=..., trusted=True) if you trust everyone who can write there"
    )


def make_folder(folder: Path, *, is_shared: bool = False) -> None:
    """Create a folder of a cache, and the cache's directory: private, unless it is shared.

    Args:
        folder: The folder in the cache's directory.
        is_shared: Whether other users are to write there too, as far as the umask lets them.
    """
    folder.parent.parent.mkdir(parents=True, exist_ok=True)
    folder.parent.mkdir(mode=0o777 if is_shared else 0o700, exist_ok=True)
    folder.mkdir(mode=0o777 if is_shared else 0o755, exist_ok=True)


def can_only_be_read(path: Path) -> bool:
    """Whether code can be loaded from a directory, and none be kept there."""
    return path.is_dir() and not _is_allowed(path, os.W_OK) and _is_allowed(path, os.R_OK)
