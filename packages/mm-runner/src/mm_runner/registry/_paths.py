"""Where in the whole configuration a part of it stands that a component builds by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

__all__ = ["path_within", "under_construction"]

# The component that is being built: its path, and the config that it was given.
_under_construction: ContextVar[tuple[str, Any] | None] = ContextVar(
    "mm_runner_under_construction", default=None
)


@contextmanager
def under_construction(where: str, arguments: Mapping[str, Any]) -> Iterator[None]:
    """Let :func:`path_within` find, within the block, what is among ``arguments``."""
    token = _under_construction.set((where, arguments))
    try:
        yield
    finally:
        _under_construction.reset(token)


def path_within(cfg: object) -> str | None:
    """Return the path of ``cfg`` if it is a part of what the component under construction got."""
    outer = _under_construction.get()
    return None if outer is None else _search(cfg, outer[1], outer[0])


def _search(wanted: object, holder: Any, where: str) -> str | None:
    if isinstance(holder, Mapping):
        parts = [(f"{where}.{key}", value) for key, value in holder.items()]
    elif isinstance(holder, (list, tuple)):
        parts = [(f"{where}[{index}]", value) for index, value in enumerate(holder)]
    else:
        return None
    for path, value in parts:
        found = path if value is wanted else _search(wanted, value, path)
        if found is not None:
            return found
    return None
