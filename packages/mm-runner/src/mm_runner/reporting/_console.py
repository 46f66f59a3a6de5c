"""The terminal of a run, lines above and a progress bar below, and its logger."""

from __future__ import annotations

import logging
import random
import sys
import time
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TextIO
from weakref import WeakValueDictionary

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rich.console import Console
    from rich.progress import Progress

# That of the newest run, while it lives.
_loggers: WeakValueDictionary[str, logging.Logger] = WeakValueDictionary()

_LONGEST_S = timedelta.max.total_seconds() - 1

# A bar that moves ten times a second looks continuous; more often costs the training its time.
_REFRESH_INTERVAL_S = 0.1
# Columns beside the bar: steps, time left, a loss and the speed.
_BAR_TEXT_WIDTH = 70
_MOMENT = "%m/%d %H:%M:%S"
_PACKAGES = ("mm_amp", "mm_compile", "mm_dist", "mm_npu")
_GONE = (OSError, ValueError)  # what print raises; ValueError: this program closed the file
_LEVEL_STYLES = {"WARNING": "yellow", "ERROR": "red", "CRITICAL": "bold red"}


class RunConsole:
    """Prints lines, and on a terminal a progress bar below them.

    A bar may have several tasks, such as a validation within a training: the newest one moves.
    Where the terminal has been closed, or what read the output has ended, it falls silent: a
    training does not depend on being watched, and its lines are in the log file too.

    Args:
        is_main: Whether this process prints at all.
        console: Where to print; standard output by default.
    """

    def __init__(self, *, is_main: bool, console: Console | None = None) -> None:
        self._is_main = is_main
        self._console = console
        self._progress: Progress | None = None
        self._next_refresh = 0.0

    @property
    def console(self) -> Console:
        """The rich console, made on first use: importing rich is not free."""
        if self._console is None:
            state = random.getstate()  # rich draws from it when it is imported
            from rich.console import Console  # noqa: PLC0415

            random.setstate(state)
            self._console = Console(soft_wrap=True, highlight=False)
        return self._console

    def _is_terminal(self) -> bool:
        # Do not import rich for a file or pipe.
        is_open = not getattr(sys.stdout, "closed", False)
        may_be = self._console is not None or (is_open and getattr(sys.stdout, "isatty", bool)())
        return may_be and self.console.is_terminal

    def print(self, line: str, style: str | None = None) -> None:
        """Print ``line`` as it is, above the bar if there is one; ``style`` is for terminals."""
        if not self._is_main:
            return
        try:  # a context manager would cost a line of each step a fifth more
            if self._is_terminal():
                self.console.print(
                    line, style=style, markup=False, emoji=False, highlight=False, soft_wrap=True
                )
                return
            # rich would do the same in a hundred times the time.
            file = self._console.file if self._console else sys.stdout
            encoding = getattr(file, "encoding", None) or "utf-8"
            text = line.encode(encoding, "backslashreplace").decode(encoding)
            print(f"{text}\n", end="", file=file, flush=True)  # one write, of the end too
        except _GONE:
            self._is_main, self._progress = False, None

    def start_progress(self, description: str, total: int, done: int = 0) -> None:
        """Show a bar of ``total`` steps, ``done`` of them done. Only on a terminal."""
        if not (self._is_main and self._is_terminal()):
            return
        from rich import progress  # noqa: PLC0415

        if self._progress is None:
            room = self.console.width - _BAR_TEXT_WIDTH
            self._progress = progress.Progress(
                progress.TextColumn("{task.description}"),
                progress.BarColumn(min(max(room, 8), 40)),
                progress.TaskProgressColumn(),
                progress.MofNCompleteColumn(),
                progress.TextColumn("eta"),
                progress.TimeRemainingColumn(),
                progress.TextColumn("{task.fields[values]}"),
                console=self.console,
                auto_refresh=False,
            )
        self._progress.add_task(description, total=total, completed=done, values="")
        self._draw(self._progress.start)  # the first time

    def update_progress(
        self, done: int, *, description: str | None = None, values: str | None = None
    ) -> None:
        """Move the bar to ``done`` steps, at most ten times a second unless its text changes.

        Args:
            done: Steps done.
            description: Text before the bar; as before by default.
            values: Text after the bar, such as the loss; as before by default.
        """
        if self._progress is None:
            return
        now = time.monotonic()
        if now < self._next_refresh and description is None and values is None:
            return
        self._next_refresh = now + _REFRESH_INTERVAL_S
        fields: dict[str, Any] = {} if values is None else {"values": values}
        task = self._progress.task_ids[-1]
        self._progress.update(task, completed=done, description=description, **fields)
        self._draw(self._progress.refresh)

    def end_task(self) -> None:
        """Take the newest task away, and the bar with the last one."""
        if self._progress is not None and len(self._progress.task_ids) > 1:
            self._progress.remove_task(self._progress.task_ids[-1])
        else:
            self.stop_progress()

    def stop_progress(self) -> None:
        """Take the bar down, leaving its last state on the terminal. Does nothing without one."""
        if self._progress is not None:
            progress, self._progress = self._progress, None
            self._draw(progress.stop)

    def _draw(self, write: Callable[[], object]) -> None:
        try:
            write()
        except _GONE:  # rich would keep every line that it cannot write
            self._is_main, self._progress = False, None


def as_clock(seconds: float) -> str:
    """Return a duration as ``h:mm:ss``, with days before it where there are some."""
    # An endless run exceeds timedelta.
    return str(timedelta(seconds=int(min(seconds, _LONGEST_S))))


def open_logger(
    name: str, console: RunConsole, log_file: Path | None, level: str | int | None
) -> logging.Logger:
    """Make the logger of a run.

    Each run has its own, which :func:`logging.getLogger` does not know, so that two runs in one
    process do not write into each other's files, whatever they are called. Nothing is passed on to
    the root logger's handlers. On the main process the newest run also takes what the packages that
    mm-runner uses log; their own loggers still propagate.

    Args:
        name: Name of the run.
        console: Prints the lines, on the main process only.
        log_file: File of the lines, or ``None``.
        level: As in :mod:`logging`; ``None`` is ``"INFO"``.
    """
    level = "INFO" if level is None else level
    logger = logging.Logger(f"mm_runner.run.{name}", level)  # noqa: LOG001 - see above
    logger.propagate = False
    handler = _RunHandler(console, log_file)
    handler.setLevel(level)
    logger.addHandler(handler)
    for other in map(logging.getLogger, _PACKAGES if log_file else ()):
        other.handlers = [one for one in other.handlers if not isinstance(one, _RunHandler)]
        other.addHandler(handler)
    _loggers["newest"] = logger
    return logger


def current_logger() -> logging.Logger:
    """Return the logger of the newest run of this process; without one, that of the package."""
    return _loggers.get("newest") or logging.getLogger("mm_runner")


def close_logger(logger: logging.Logger) -> None:
    """Take the handlers off ``logger`` and close them."""
    for handler in list(logger.handlers):
        for one in (logger, *map(logging.getLogger, _PACKAGES)):
            one.removeHandler(handler)
        handler.close()


class _RunHandler(logging.Handler):
    """Prints above the progress bar, and writes to a file."""

    def __init__(self, console: RunConsole, path: Path | None) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", _MOMENT))
        self._console, self._path = console, path
        # Each line is on the disk at once.
        self._file: TextIO | None = path.open("a", 1, encoding="utf-8") if path else None
        self._has_warned = False

    @override
    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:  # noqa: BLE001 - as any handler: a wrong format string ends no run
            self.handleError(record)
            return
        self._console.print(line, _LEVEL_STYLES.get(record.levelname))
        try:
            if self._file is not None:
                self._file.write(f"{line}\n")
        except (OSError, ValueError) as error:  # training continues
            if not self._has_warned:
                self._console.print(f"{self._path} could not be written: {error}.")
            self._has_warned = True

    @override
    def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # what the disk had no room for
                self._file.close()
        super().close()
