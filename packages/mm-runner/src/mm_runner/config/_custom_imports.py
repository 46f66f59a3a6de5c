"""Import the modules of ``custom_imports``, so that their components register."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mm_runner.errors import ConfigError, with_place


def import_modules(custom_imports: Any) -> None:
    """Import what ``custom_imports`` of a configuration names.

    Args:
        custom_imports: ``dict(imports=["package.module", ...], allow_failed_imports=False)``;
            ``imports`` may be one name. ``None`` imports nothing.

    Raises:
        ConfigError: If it is written otherwise, or a module cannot be imported.

    Example:
        >>> import_modules(dict(imports="json"))
    """
    cfg = {} if custom_imports is None else custom_imports
    names = cfg.get("imports", ()) if isinstance(cfg, Mapping) else None
    names = [names] if isinstance(names, str) else names
    if (
        not isinstance(names, (list, tuple))
        or not all(isinstance(name, str) for name in names)
        or not cfg.keys() <= {"imports", "allow_failed_imports"}
    ):
        raise ConfigError(
            "custom_imports: a dict such as dict(imports=['package.module'], "
            f"allow_failed_imports=False) is needed, got {custom_imports!r}."
        )
    for index, name in enumerate(names):
        where = f"custom_imports.imports[{index}]"
        try:
            importlib.import_module(name)
        except ImportError as error:
            said = f"{where}: the module {name!r} cannot be imported: {error}."
            if not cfg.get("allow_failed_imports"):
                raise ConfigError(
                    f"{said} It is looked for on Python's path, and beside the configuration."
                ) from error
            warnings.warn(said, stacklevel=3)
        except Exception as error:
            place = with_place(error)
            raise ConfigError(f"{where}: importing {name!r} failed: {place}.") from error


@contextmanager
def importable_folder(folder: Path) -> Iterator[None]:
    """Let modules in ``folder`` be imported within the block, as beside a script."""
    entry = str(folder)
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)
