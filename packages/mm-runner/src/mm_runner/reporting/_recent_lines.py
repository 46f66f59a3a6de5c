"""The last lines of a run's log, for what is told of it when it fails."""

from __future__ import annotations

import logging
from collections import deque

from typing_extensions import override

__all__ = ["RecentLines", "recent_lines"]

_COUNT = 50


class RecentLines(logging.Handler):
    """Keeps the records that a logger wrote last, on every process."""

    def __init__(self) -> None:
        super().__init__()
        self.records: deque[str] = deque(maxlen=_COUNT)

    @override
    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.records.append(self.format(record))
        except Exception:  # noqa: BLE001 - as any handler: a wrong format string ends no run
            self.handleError(record)


def recent_lines(logger: logging.Logger) -> list[str]:
    """Return the last lines of the log of a run, at most fifty."""
    records = [
        text
        for handler in logger.handlers
        if isinstance(handler, RecentLines)
        for text in handler.records
    ]
    return "\n".join(records).splitlines()[-_COUNT:]
