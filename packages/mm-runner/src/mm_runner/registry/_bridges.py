"""Bridges: libraries whose own components work in a run.

A distribution advertises a bridge as an entry point of the group ``mm.bridges``. The entry is named
like the module that the bridge needs, and is loaded only where that module is installed.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Mapping

    from mm_runner.hooks import Hook

    FindLogger = Callable[[], logging.Logger | None]

__all__ = ["Bridge", "adopt", "bridges", "prepare_libraries"]


class Bridge(Protocol):
    """What a bridge to a library provides."""

    def begin(self, arguments: Mapping[str, Any], find_logger: FindLogger) -> list[Hook]:
        """Prepare the library's global objects for a Runner's arguments; return hooks to add."""

    def find(self, kind: str, name: str, scope: str | None) -> Callable[..., Any] | None:
        """Return a component of the library ``scope``, or with ``None`` one that all may use."""

    def adopt(self, kind: str, value: Any) -> Any:
        """Return ``value`` as a component of this package; others unchanged."""


@lru_cache(maxsize=1)
def bridges() -> tuple[Bridge, ...]:
    """Load the bridges whose libraries are installed."""
    entries = entry_points(group="mm.bridges")
    return tuple(entry.load() for entry in entries if find_spec(entry.name) is not None)


def prepare_libraries(arguments: Mapping[str, Any], find_logger: FindLogger) -> list[Hook]:
    """Prepare the libraries of a run that has a default scope, before its hooks are built.

    Args:
        arguments: Those of a Runner.
        find_logger: Returns the logger of the run once there is one.

    Returns:
        Hooks to add to the run.
    """
    if arguments.get("default_scope") is None:
        return []
    return [hook for bridge in bridges() for hook in bridge.begin(arguments, find_logger)]


def adopt(kind: str, value: Any) -> Any:
    """Return a component of another library as one of this package, and any other as it is."""
    for bridge in bridges():
        value = bridge.adopt(kind, value)
    return value
