"""Paths of configs that a component builds from its own arguments, for messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

__all__ = ["path_within", "under_construction"]

# Path and arguments of the component under construction.
_under_construction: ContextVar[tuple[str, Any] | None] = ContextVar(
    "mm_runner_under_construction", default=None
)


@contextmanager
def under_construction(where: str, arguments: Mapping[str, Any]) -> Iterator[None]:
    """Let :func:`path_within` find configs among ``arguments`` within the block."""
    token = _under_construction.set((where, arguments))
    try:
        yield
    finally:
        _under_construction.reset(token)


def path_within(cfg: object) -> str | None:
    """Return the path of ``cfg`` if it is among the arguments under construction."""
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
