"""The logger of one run: its lines go to the console and to a file."""

from __future__ import annotations

import logging
import sys
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from typing_extensions import override

from mm_runner.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from ._console import RunConsole

__all__ = ["close_logger", "open_logger", "recent_lines"]

_NUM_RECENT = 50


def open_logger(
    name: str, console: RunConsole, log_file: Path | None, level: str | int
) -> logging.Logger:
    """Make the logger of a run.

    Each run has its own, which :func:`logging.getLogger` does not know, so that two runs in one
    process do not write into each other's files, whatever they are called. Nothing is passed on to
    the root logger's handlers.

    Args:
        name: Name of the run.
        console: Prints the lines, on the main process only.
        log_file: File of the lines, or ``None``.
        level: As in :mod:`logging`.

    Raises:
        ConfigError: If ``level`` is not one.
    """
    try:
        logger = logging.Logger(f"mm_runner.run.{name}", level)  # noqa: LOG001 - see above
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"log_level: {level!r} was given; there are DEBUG, INFO, WARNING, ERROR and CRITICAL."
        ) from error
    logger.propagate = False
    form = logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%m/%d %H:%M:%S")
    handlers: list[logging.Handler] = [_ConsoleHandler(console)]
    if log_file is not None:
        handlers.append(_FileHandler(log_file, console))
    for handler in handlers:
        handler.setFormatter(form)
        logger.addHandler(handler)
    return logger


def close_logger(logger: logging.Logger) -> None:
    """Take the handlers off ``logger`` and close them."""
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        with suppress(OSError):  # what the disk had no room for
            handler.close()


class _ConsoleHandler(logging.Handler):
    """Prints above the progress bar, and keeps recent lines on every process."""

    def __init__(self, console: RunConsole) -> None:
        super().__init__()
        self._console = console
        self.recent: deque[str] = deque(maxlen=_NUM_RECENT)

    @override
    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:  # noqa: BLE001 - as any handler: a wrong format string ends no run
            self.handleError(record)
            return
        self.recent.append(line)
        self._console.print_record(record, line)


class _FileHandler(logging.FileHandler):
    """Warns once on the console if the file cannot be written; training continues."""

    def __init__(self, path: Path, console: RunConsole) -> None:
        super().__init__(path, encoding="utf-8")
        self._console = console
        self._has_warned = False

    @override
    def handleError(self, record: logging.LogRecord) -> None:
        if not self._has_warned:
            self._has_warned = True
            self._console.print(f"{self.baseFilename} could not be written: {sys.exc_info()[1]}.")


def recent_lines(logger: logging.Logger) -> list[str]:
    """Return the last lines of the log of a run, at most fifty, for crash reports."""
    found = [
        text
        for handler in logger.handlers
        if isinstance(handler, _ConsoleHandler)
        for text in handler.recent
    ]
    return "\n".join(found).splitlines()[-_NUM_RECENT:]
