"""Which of the files that a hook has written are still there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["WrittenFiles"]


class WrittenFiles:
    """The whole files that a hook knows of in its directory; on the main process.

    A thread may add to it while another one asks.
    """

    def __init__(self) -> None:
        # By name, in the order of writing: whether somebody was told that it is gone.
        self._names: dict[str, bool] = {}

    def add(self, names: Iterable[str], deleted: Iterable[str] = ()) -> None:
        """Note files that were written, and others that were deleted for them."""
        for name in deleted:
            self._names.pop(name, None)
        for name in names:
            self._names[name] = False

    def begin(self, directory: Path) -> None:
        """Strike off what is not there as a training begins: it may lie elsewhere."""
        for name in self._missing(directory):
            del self._names[name]

    def newly_lost(self, directory: Path) -> list[str]:
        """Return the files that somebody has removed, each once."""
        lost = [name for name in self._missing(directory) if not self._names[name]]
        self._names.update(dict.fromkeys(lost, True))
        return lost

    def take_lost(self, directory: Path, logger: logging.Logger) -> tuple[list[str], bool]:
        """Strike off what somebody has removed, and warn if it is all, unless they were told.

        Returns:
            The names, and whether all was removed, and not single files by somebody who knows why.
        """
        lost = self._missing(directory)
        is_known = any(self._names[name] for name in lost)
        is_emptied = is_known or (bool(lost) and len(lost) == len(self._names))
        for name in lost:
            del self._names[name]
        if is_emptied and not is_known:
            logger.warning(
                f"The checkpoints were removed from {directory} while training: "
                f"{', '.join(lost)}. Training goes on, and saves there."
            )
        return lost, is_emptied

    def _missing(self, directory: Path) -> list[str]:
        names = list(self._names)  # before the look: what is added meanwhile is there
        try:
            there = set(os.listdir(directory))  # noqa: PTH208 - names are all that is needed
        except FileNotFoundError:
            there = set()
        except OSError:  # a server that does not answer has lost nothing
            return []
        return [name for name in names if name not in there and name in self._names]
