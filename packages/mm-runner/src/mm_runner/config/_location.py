"""Where in a file a key stands, for messages."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path

from ._environment import Variables
from ._provenance import trace
from ._python import BASE

__all__ = ["describe_location", "reads_name", "written_in"]

_PATH = re.compile(r"(?:cfg\.)?([A-Za-z_][\w-]*(?:\.[\w-]+|\[\d+\])*)(?=[:\s]|$)")


def describe_location(files: Sequence[Path], message: str) -> str:
    """Return ``"file:line"`` of the key whose path ``message`` begins with.

    Args:
        files: Those that a configuration was read from, the one that was asked for first.
        message: Begins as ``optim_wrapper.optimizer.lrr: ...``.

    Returns:
        The place where the key was written last, or the nearest one above it. Where that depends on
        what is known only when the file is run, the place of the statement that changed what is
        above. The first file alone where no file has the first key; ``""`` without files or path.
    """
    match = _PATH.match(message)
    if match is None or not files:
        return ""
    place = _shown(files[0])
    try:
        value = trace(files[0])
        for key in re.findall(r"[\w-]+", match[1]):
            entry = value.entry(key)
            if entry is None:
                break
            place, value = f"{_shown(entry.file)}:{entry.line}", entry.value
        else:
            return place
    except Exception:  # noqa: BLE001 - a message must not fail for want of its line
        return place
    if value.changed_at is not None:
        file, line = value.changed_at
        place = f"{_shown(file)}:{line}"
    return place


def written_in(files: Sequence[Path], path: str) -> Path | None:
    """Return the file that writes the key ``path`` last; ``None`` where that is not known."""
    place = None
    try:
        value = trace(files[0])
        for key in path.split("."):
            entry = value.entry(key)
            if entry is None:
                return None
            place, value = entry.file, entry.value
    except Exception:  # noqa: BLE001 - as above
        return None
    return place


def reads_name(file: Path, name: str) -> bool:
    """Return whether ``file`` reads a top-level key: a variable of Python, or of its ``_base_``."""
    try:
        text = file.read_text(encoding="utf-8")
        names = ast.walk(ast.parse(Variables(str(file)).hide(text))) if file.suffix == ".py" else ()
    except (OSError, SyntaxError, ValueError):
        return False
    loaded = {one.id for one in names if isinstance(one, ast.Name) and type(one.ctx) is ast.Load}
    return name in loaded or f"{BASE}.{name}" in text


def _shown(file: Path) -> str:
    """Return the path from the current folder, if it leads there without going up."""
    try:
        return str(file.relative_to(Path.cwd()))
    except ValueError:
        return str(file)
