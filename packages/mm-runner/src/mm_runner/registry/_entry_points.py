"""Components that installed distributions advertise as entry points."""

from __future__ import annotations

import sys
from functools import lru_cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points

from mm_runner.errors import ConfigError

__all__ = ["installed_names", "load_entry_point"]


def installed_names(group: str) -> list[str]:
    """List the names advertised in ``group``, sorted; nothing is imported."""
    return sorted({entry.name for entry in _group(group)})


def load_entry_point(group: str, name: str) -> object | None:
    """Import the one component advertised as ``name`` in ``group``."""
    entries = {entry.value: entry for entry in _group(group) if entry.name == name}
    if not entries:
        return None
    if len(entries) > 1:
        providers = ", ".join(sorted(_provider(entry) for entry in entries.values()))
        raise ConfigError(
            f"{name!r} was asked for in {group!r}, and {providers} provide it; "
            "uninstall all but one, or give the import path 'package.module:Name' as type."
        )
    (entry,) = entries.values()
    component: object = entry.load()
    return component


def _group(group: str) -> EntryPoints:
    return _read(group, tuple(sys.path))


@lru_cache(maxsize=64)
def _read(group: str, path: tuple[str, ...]) -> EntryPoints:
    """Read every distribution on ``path``, which takes long where many are installed."""
    del path  # sys.path, which entry_points() reads
    return entry_points(group=group)


def _provider(entry: EntryPoint) -> str:
    name = entry.dist.name if entry.dist is not None else "an unnamed distribution"
    return f"{name} ({entry.value})"
