"""Which of the files that a hook has written are still there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mm_runner._disk import identity_of, is_gone

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
        # By name: what tells the file that was written, or looked into, from another one.
        self._identities: dict[str, tuple[int, ...]] = {}

    def add(self, names: Iterable[str], deleted: Iterable[str] = ()) -> None:
        """Note files that were written, and others that were deleted for them."""
        for name in deleted:
            self._names.pop(name, None)
        for name in names:
            self._names[name] = False

    def add_best(self, directory: Path, name: str) -> None:
        """Note a file of a best model that was written, and what tells it from another one."""
        self.replaced(directory, [name])
        self.add([name])

    def replaced(self, directory: Path, names: Iterable[str]) -> list[Path]:
        """Return which of ``names`` are there and are other files than were noted, and note them.

        Such are the old ones, when a share comes back that was gone for a while.
        """
        others = []
        for name in names:
            identity = identity_of(directory / name)
            if identity is not None and identity != self._identities.get(name):
                self._identities[name] = identity
                others.append(directory / name)
        return others

    def begin(self, directory: Path, best: Iterable[str]) -> None:
        """Strike off what is not there as a training begins: it may lie elsewhere.

        Args:
            directory: Where they are.
            best: Names of files of best models, whose content is known, or another run's.
        """
        self.replaced(directory, best)
        for name in self._missing(directory):
            del self._names[name]

    def newly_lost(self, directory: Path) -> list[str]:
        """Return the files that were removed, each once, where more than these was; else none.

        Where one is left, the others were moved away by somebody who knows why.
        """
        missing = self._missing(directory)
        if len(missing) < len(self._names):
            return []
        lost = [name for name in missing if not self._names[name]]
        self._names.update(dict.fromkeys(lost, True))
        return lost

    def take_lost(self, directory: Path, logger: logging.Logger) -> tuple[list[str], bool]:
        """Strike off what somebody has removed, and warn if it is all, unless they were told.

        Returns:
            The names, and whether all was removed, and not single files by somebody who knows why.
        """
        lost = self._missing(directory)
        is_known = any(self._names[name] for name in lost)
        is_emptied = is_known or self._is_emptied(directory, lost)
        for name in lost:
            del self._names[name]
            self._identities.pop(name, None)  # whatever comes there is another one
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
        for name in there.intersection(names):
            if self._names.get(name):
                self._names[name] = False  # it has come back, and may be lost again
        return [name for name in names if name not in there and name in self._names]

    def _is_emptied(self, directory: Path, missing: list[str]) -> bool:
        """Tell whether all was removed; a single file may have been moved by who wants it."""
        is_all = bool(missing) and len(missing) == len(self._names)
        return is_all and (len(missing) > 1 or is_gone(directory))
