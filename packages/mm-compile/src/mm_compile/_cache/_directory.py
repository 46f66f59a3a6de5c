"""Directory of a cache: parsing, permissions, ownership."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mm_compile._errors import ConfigError
from mm_compile._words import suggest

_KEYS = ("dir", "trusted")


def parse_cache(
    value: str | os.PathLike[str] | bool | Mapping[str, Any],  # noqa: FBT001 - a config value
) -> tuple[Path | None, bool]:
    """Parse the config's ``cache``.

    Returns:
        The directory or None, and whether to run code that other users can write.

    Raises:
        ConfigError: If the value is True, an unknown key, or not a directory.
    """
    if value is False:
        return None, False
    if value is True:
        raise ConfigError(
            "compile.cache is True; it takes a directory here. Only mm-runner chooses one for "
            "True. Write cache='DIR', the same for all runs of a project."
        )
    given = value if isinstance(value, Mapping) else {"dir": value}
    for key in given:
        if key not in _KEYS:
            raise ConfigError(f"compile.cache has no key {key!r}. {suggest(key, _KEYS)}")
    directory, is_trusted = given.get("dir"), given.get("trusted", False)
    if not isinstance(directory, (str, os.PathLike)):
        raise ConfigError(f"compile.cache.dir is {directory!r}; it takes a directory.")
    if not isinstance(is_trusted, bool):
        raise ConfigError(f"compile.cache.trusted is {is_trusted!r}; it takes True or False.")
    return check_directory(directory, is_read_only_fine=True), is_trusted


def check_directory(
    value: str | os.PathLike[str], *, name: str = "compile.cache", is_read_only_fine: bool = False
) -> Path:
    """Return the absolute path of a cache directory; create nothing.

    Args:
        value: The path.
        name: The argument's name, for error messages.
        is_read_only_fine: Whether to accept a directory that exists and is read-only.

    Raises:
        ConfigError: If the path is a file, or the directory cannot be written or created.
    """
    try:
        path = Path(value).expanduser().absolute()
    except RuntimeError as error:  # the home directory of an unknown user
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
    if not (_is_allowed(existing, os.W_OK) or (is_read_only_fine and is_read_only(path))):
        action = "written" if existing == path else "created"
        raise ConfigError(
            f"{name} is {str(value)!r}, which cannot be {action}: {existing} is not "
            "writable. Name another directory, or change its permissions."
        )
    return path


def is_read_only(path: Path) -> bool:
    """Whether the directory can be read but not written."""
    return path.is_dir() and not _is_allowed(path, os.W_OK) and _is_allowed(path, os.R_OK)


def _is_allowed(directory: Path, access: int) -> bool:
    uses_effective = os.access in os.supports_effective_ids
    return os.access(directory, access | os.X_OK, effective_ids=uses_effective)


def refusal_of(directory: Path, folder: Path | None = None) -> str | None:
    """Say in one line why code in a cache is not run, or return None.

    Args:
        directory: The cache's directory.
        folder: A folder in it, checked with everything in it.
    """
    paths = [directory]
    if folder is not None and folder.exists():
        paths.append(folder)
        # Nobody else can reach what lies in a private folder.
        if folder.stat().st_mode & 0o077:
            paths += folder.rglob("*")
    for path in paths:
        try:
            reason = _distrust_reason(path.lstat())
        except FileNotFoundError:
            continue
        if reason is not None:
            return (
                f"code in {path} is not trusted: {reason}. Make it yours alone (chown, chmod "
                "go-w), or set cache=dict(dir=..., trusted=True) if you trust everyone who can "
                "write there"
            )
    return None


def _distrust_reason(state: os.stat_result) -> str | None:
    if not hasattr(os, "geteuid"):  # Windows does not express permissions as modes
        return None
    if state.st_uid not in (0, os.geteuid()):
        return f"it belongs to user {state.st_uid}, not to you"
    if state.st_mode & 0o022:
        return f"its mode {state.st_mode & 0o7777:o} lets group or others write"
    return None


def make_folder(folder: Path, *, is_shared: bool = False) -> None:
    """Create a folder in a cache, and the cache's directory: private, unless shared.

    Args:
        folder: The folder, directly in the cache's directory.
        is_shared: Whether other users may write there too, as far as the umask allows.
    """
    mode = 0o777 if is_shared else 0o700
    folder.parent.parent.mkdir(parents=True, exist_ok=True)
    folder.parent.mkdir(mode=mode, exist_ok=True)
    folder.mkdir(mode=mode, exist_ok=True)
