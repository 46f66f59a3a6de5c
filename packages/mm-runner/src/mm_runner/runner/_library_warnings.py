"""Warnings of our libraries, which know no run, as lines of the run's log."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["logging_warnings_of"]


@contextmanager
def logging_warnings_of(library: str, logger: logging.Logger) -> Iterator[None]:
    """Let ``logger`` tell what the library logs in the block, where all processes do alike.

    Without it Python prints a line on each process, bare. Handlers that the program has set up get
    the records as before.

    Args:
        library: Name of the package.
        logger: Of the run: the main process's writes, the others' do not.
    """
    source, forward = logging.getLogger(library), _Forward(logger)
    source.addHandler(forward)
    try:
        yield
    finally:
        source.removeHandler(forward)


class _Forward(logging.Handler):
    def __init__(self, logger: logging.Logger) -> None:
        super().__init__()
        self._logger = logger

    @override
    def emit(self, record: logging.LogRecord) -> None:
        if self._logger.isEnabledFor(record.levelno):
            self._logger.handle(record)
