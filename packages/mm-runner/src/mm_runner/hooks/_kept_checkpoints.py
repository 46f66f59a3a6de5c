"""Which of the numbered checkpoints stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["KeptCheckpoints"]


class KeptCheckpoints:
    """The names of the numbered checkpoints that are there, the oldest first.

    A name is added before its file is written, so that the file itself knows of it, and those that
    it makes superfluous leave the list only once they are deleted: whenever the run is killed, the
    one that resumes from the file deletes what the killed one could not.

    Args:
        limit: How many stay; ``-1`` keeps all.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.names: list[str] = []

    def add(self, name: str) -> list[str]:
        """Add the newest, and return the names that are superfluous once it is written."""
        self.names = [*(known for known in self.names if known != name), name]
        return self.names[: -self._limit] if self._limit > 0 else []

    def remove(self, names: Iterable[str]) -> None:
        """Strike ``names`` off: deleted, or never written."""
        gone = set(names)
        self.names = [name for name in self.names if name not in gone]
