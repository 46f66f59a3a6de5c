"""File and line of a key, for messages."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path

from ._provenance import Place, trace
from ._python import BASE
from ._substitution import write_values

__all__ = ["describe_location", "reads_name", "written_in"]

_PATH = re.compile(r"(?:cfg\.)?([A-Za-z_][\w-]*(?:\.[\w-]+|\[\d+\])*)(?=[:\s]|$)")


def describe_location(files: Sequence[Path], message: str) -> str:
    """Return ``"file:line"`` of the key whose path ``message`` begins with."""
    match = _PATH.match(message)
    if match is None or not files:
        return ""
    places = _places_of(files[0], re.findall(r"[\w-]+", match[1]))
    return f"{_shown(places[-1].file)}:{places[-1].line}" if places else _shown(files[0])


def written_in(files: Sequence[Path], path: str) -> Path | None:
    """Return the file that sets the key ``path`` last; ``None`` where that is not known."""
    keys = path.split(".")
    places = _places_of(files[0], keys) if files else []
    return places[-1].file if len(places) == len(keys) else None


def _places_of(file: Path, keys: Sequence[str]) -> list[Place]:
    """Return the places of the keys of a path, up to the last that is known."""
    places: list[Place] = []
    try:
        place = trace(file).part(keys[0])
        while place is not None:
            places.append(place)
            place = place.part(keys[len(places)]) if len(places) < len(keys) else None
    except Exception:  # noqa: BLE001 - a message must not fail for want of its line
        return []
    return places


def reads_name(file: Path, name: str) -> bool:
    """Return whether ``file`` reads a top-level key: a variable of Python, or of its ``_base_``."""
    try:
        text = write_values(file.read_text(encoding="utf-8"), file)
        names = ast.walk(ast.parse(text)) if file.suffix == ".py" else ()
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
