"""The terminal of a run: lines above, a progress bar below."""

from __future__ import annotations

import random
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logging import LogRecord

    from rich.console import Console
    from rich.progress import Progress
    from rich.text import Text

__all__ = ["RunConsole", "TrainingClock", "as_clock"]

_LONGEST_S = timedelta.max.total_seconds() - 1

# A bar that moves ten times a second looks continuous; more often costs the training its time.
_REFRESH_INTERVAL_S = 0.1
# Columns beside the bar: steps, time left, a loss and the speed.
_BAR_TEXT_WIDTH = 70
_LEVEL_STYLES = {"WARNING": "yellow", "ERROR": "red", "CRITICAL": "bold red"}
# A line of scalars, and the gaps between these: within a position there are spaces, too.
_SCALARS = re.compile(r"(Epoch|Iter)\(\w+\)  \[")
_GAP = re.compile(r"  (?=[^\s:]+: )")


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
        self._tasks: list[tuple[Any, int]] = []  # with their totals
        self._next_refresh = 0.0

    @property
    def console(self) -> Console:
        """The rich console, made on first use: importing rich is not free."""
        if self._console is None:
            with _random_numbers_kept():
                from rich.console import Console  # noqa: PLC0415

            self._console = Console(soft_wrap=True, highlight=False)
        return self._console

    @property
    def has_bar(self) -> bool:
        """Whether there is a progress bar at present."""
        return self._progress is not None

    def print(self, line: str) -> None:
        """Print ``line`` as it is, above the bar if there is one."""
        if not self._is_main:
            return
        with self._silent_if_gone():
            if self._progress is None:  # then rich would do the same in a hundred times the time
                file: Any = sys.stdout if self._console is None else self._console.file
                if file is not None:  # a program without a console has none
                    file.write(f"{_writable(line, file)}\n")  # print() writes the end apart
                    file.flush()
            else:
                self.console.print(line, markup=False, emoji=False, highlight=False, soft_wrap=True)

    def print_record(self, record: LogRecord, line: str) -> None:
        """Print a log record: on a terminal in its width and in colour, elsewhere as ``line``."""
        if not self._is_main or not self.console.is_terminal:
            self.print(line)
            return
        with self._silent_if_gone():
            self.console.print(_styled(record, line, self.console.width), soft_wrap=True)

    def start_progress(self, description: str, total: int, done: int = 0) -> None:
        """Show a bar of ``total`` steps, ``done`` of them done. Only on a terminal."""
        if not self._is_main or not self.console.is_terminal:
            return
        from rich import progress  # noqa: PLC0415

        is_first = self._progress is None
        if self._progress is None:
            room = self.console.width - _BAR_TEXT_WIDTH
            self._progress = progress.Progress(
                progress.TextColumn("{task.description}"),
                progress.BarColumn(min(max(room, 8), 40)),
                progress.TaskProgressColumn(),
                progress.MofNCompleteColumn(),
                progress.TextColumn("{task.fields[eta]}"),
                progress.TextColumn("{task.fields[values]}"),
                console=self.console,
                auto_refresh=False,
            )
        task = self._progress.add_task(description, total=total, completed=done, eta="", values="")
        self._tasks.append((task, total))
        with self._silent_if_gone():
            if is_first:
                self._progress.start()

    def update_progress(
        self,
        done: int,
        *,
        description: str | None = None,
        values: str | None = None,
        clock: TrainingClock | None = None,
    ) -> None:
        """Move the bar to ``done`` steps, at most ten times a second unless its text changes.

        Args:
            done: Steps done.
            description: Text before the bar; as before by default.
            values: Text after the bar, such as the loss; as before by default.
            clock: Tells how long the rest takes; asked only when the bar is drawn.
        """
        if self._progress is None:
            return
        now = time.monotonic()
        if now < self._next_refresh and description is None and values is None:
            return
        self._next_refresh = now + _REFRESH_INTERVAL_S
        task, total = self._tasks[-1]
        fields: dict[str, Any] = {} if values is None else {"values": values}
        if clock is not None:
            fields["eta"] = f"eta {as_clock(clock.eta_s(done, total))}"
        self._progress.update(task, completed=done, description=description, **fields)
        with self._silent_if_gone():
            self._progress.refresh()

    def end_task(self) -> None:
        """Take the newest task away, and the bar with the last one."""
        if self._progress is not None and len(self._tasks) > 1:
            self._progress.remove_task(self._tasks.pop()[0])
        else:
            self.stop_progress()

    def stop_progress(self) -> None:
        """Take the bar down, leaving its last state on the terminal. Does nothing without one."""
        if self._progress is not None:
            progress, self._progress = self._progress, None
            self._tasks.clear()
            with self._silent_if_gone():
                progress.stop()

    @contextmanager
    def _silent_if_gone(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError):  # ValueError: the file was closed by this program
            self._is_main, self._progress = False, None


@contextmanager
def _random_numbers_kept() -> Iterator[None]:
    """Leave Python's seeded generator as it was: rich draws from it when it is imported."""
    state = random.getstate()
    try:
        yield
    finally:
        random.setstate(state)


def _styled(record: LogRecord, line: str, width: int) -> Text:
    """Return a record for a terminal; scalars are wrapped to its width.

    The date, and levels below warning, are in the log file only.
    """
    from rich.text import Text  # noqa: PLC0415

    message = record.getMessage()
    moment = time.strftime("%H:%M:%S ", time.localtime(record.created))
    text = Text(moment, style="dim")
    if record.levelname in _LEVEL_STYLES:
        text.append(f"{record.levelname} {message}", style=_LEVEL_STYLES[record.levelname])
    elif not _SCALARS.match(message):
        text.append(message, style="not dim")
    else:
        position, *scalars = _GAP.split(message)
        text.append(position, style="not dim bold cyan")
        column = len(moment) + len(position)
        for scalar in scalars:
            name, _, value = scalar.partition(": ")
            is_over = column + 2 + len(scalar) > width
            text.append(f"\n{' ' * len(moment)}" if is_over else "  ")
            column = (len(moment) if is_over else column + 2) + len(scalar)
            text.append(f"{name}: ")
            text.append(value, style="not dim")
    text.append(line.partition(message)[2], style="not dim")  # a traceback
    return text


def _writable(line: str, file: Any) -> str:
    """Return ``line`` with escapes for what the encoding of ``file`` cannot hold."""
    encoding = getattr(file, "encoding", None)
    if not encoding or encoding.lower() in ("utf-8", "utf8"):
        return line
    return line.encode(encoding, "backslashreplace").decode(encoding)


class TrainingClock:
    """Estimates how long the remaining steps take, from those of this run.

    Validations do not count.

    Args:
        done: Steps that were done before this run.
    """

    def __init__(self, done: int = 0) -> None:
        self._first = done
        self._left_out_s = 0.0
        self._began_s = time.perf_counter()
        self._paused_s: float | None = None

    def pause(self) -> None:
        """Stop the clock, for a validation."""
        self._paused_s = time.perf_counter()

    def go_on(self) -> None:
        """Count again; does nothing unless it was paused."""
        if self._paused_s is not None:
            self._left_out_s += time.perf_counter() - self._paused_s
            self._paused_s = None

    def step_s(self, done: int) -> float:
        """Return seconds per step up to now, when ``done`` steps of the run are done."""
        now = time.perf_counter() if self._paused_s is None else self._paused_s
        return (now - self._began_s - self._left_out_s) / max(done - self._first, 1)

    def eta_s(self, done: int, total: int) -> float:
        """Return the seconds that the rest of ``total`` steps takes."""
        # A run resumed on other data or processes may have done more steps than it would do now.
        return self.step_s(done) * max(total - done, 0)


def as_clock(seconds: float) -> str:
    """Return a duration as ``h:mm:ss``, with days before it where there are some."""
    # An endless run exceeds timedelta.
    return str(timedelta(seconds=int(min(seconds, _LONGEST_S))))
