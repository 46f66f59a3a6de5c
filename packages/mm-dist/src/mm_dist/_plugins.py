"""Find what installed distributions advertise as entry points, importing none of it."""

import sys
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from mm_dist._errors import ConfigError


def find_plugins(group: str) -> dict[str, EntryPoint]:
    """Map each name of an entry-point group to its entry point."""
    found: dict[str, EntryPoint] = {}
    for entry in _read_entry_points(group, tuple(sys.path)):
        known = found.setdefault(entry.name, entry)
        # One distribution can be seen twice (an editable install beside its wheel): same value.
        if known.value != entry.value:
            raise ConfigError(
                f"{entry.name!r} of {group} is provided by {known.value} and by {entry.value}; "
                "uninstall one of them."
            )
    return found


@lru_cache(maxsize=8)
def _read_entry_points(group: str, _path: tuple[str, ...]) -> Any:
    """Look through all distributions on ``sys.path``, once for a group."""
    return entry_points(group=group)
