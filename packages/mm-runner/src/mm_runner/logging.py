"""Logging of the newest run of this process, for code that has no ``runner`` at hand."""

from __future__ import annotations

import logging
from typing import Any

import mm_dist
from mm_runner.reporting import MessageHub, current_logger

__all__ = ["MMLogger", "MessageHub", "print_log"]


class MMLogger:
    """Finds the logger of a run; with a ``runner`` at hand it is ``runner.logger``."""

    @staticmethod
    def get_current_instance() -> logging.Logger:
        """Return the logger of the newest Runner of this process, or that of the package."""
        return current_logger()


def print_log(msg: Any, logger: Any = None, level: int = logging.INFO) -> None:
    """Log ``msg`` at ``level``.

    Without a ``logger`` the main process prints it; ``"silent"`` does nothing, and any other name
    is the logger of the newest Runner of this process.
    """
    if isinstance(logger, str) and logger != "silent":
        logger = current_logger()
    if isinstance(logger, logging.Logger):
        logger.log(level, msg)
    elif logger is None and mm_dist.is_main_process():
        print(msg)  # noqa: T201
