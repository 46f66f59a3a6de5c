"""Bridges: libraries whose own components work in a run.

A distribution advertises a bridge as an entry point of the group ``mm.bridges``. The entry is named
like the module that the bridge needs, and is loaded only where that module is installed. A bridge
has ``begin``, ``find`` and ``adopt``, as :mod:`mm_runner.openmmlab` has them.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from mm_runner.errors import ComponentNotFoundError

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Iterator, Mapping

    FindLogger = Callable[[], logging.Logger | None]


def find_entry_points(group: str | None) -> EntryPoints | tuple[()]:
    """Return what installed distributions advertise in a group."""
    return _read_entry_points(tuple(sys.path)).select(group=group) if group else ()


@lru_cache(maxsize=8)
def _read_entry_points(_path: tuple[str, ...]) -> Any:
    """Read every distribution on ``sys.path``, which takes long where many are installed."""
    return entry_points()


@lru_cache(maxsize=1)
def _entries() -> list[EntryPoint]:
    return [one for one in find_entry_points("mm.bridges") if find_spec(one.name) is not None]


def bridges() -> Iterator[tuple[str, Any]]:
    """Yield the bridges whose libraries are installed, with the libraries' names.

    Raises:
        ComponentNotFoundError: If one cannot be imported.
    """
    for entry in _entries():
        try:
            yield entry.name, entry.load()
        except ImportError as error:
            raise ComponentNotFoundError(
                f"{entry.name} is installed, and {entry.value}, which lets a run use its "
                f"components, cannot be imported: {error}. Repair or uninstall {entry.name}."
            ) from error


def prepare_libraries(arguments: Mapping[str, Any], find_logger: FindLogger) -> None:
    """Prepare the libraries of a run that has a default scope, before its parts are built.

    Args:
        arguments: Those of a Runner.
        find_logger: Returns the logger of the run once there is one.
    """
    for _, bridge in bridges() if arguments.get("default_scope") is not None else ():
        bridge.begin(arguments, find_logger)


def is_bridged(component: Any) -> bool:
    """Return whether a class or function is part of a library that a bridge serves."""
    library = str(getattr(component, "__module__", None)).partition(".")[0]
    return library in sys.modules and library in [one.name for one in _entries()]


def derives_from_library(kind: Any) -> bool:
    """Return whether a class or one of its bases is part of a library that a bridge serves."""
    return any(map(is_bridged, getattr(kind, "__mro__", ())))


def adopt(kind: str, value: Any) -> Any:
    """Return a component of another library as one of this package, and any other as it is."""
    if not derives_from_library(type(value)):
        return value
    for _, bridge in bridges():
        value = bridge.adopt(kind, value)
    return value
