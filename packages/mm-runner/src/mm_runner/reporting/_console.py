"""The terminal of a run: lines above, a progress bar below."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from ._progress import as_clock

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from ._progress import TrainingClock

__all__ = ["RunConsole"]

# A bar that moves ten times a second looks continuous; more often costs the training its time.
_REFRESH_INTERVAL_S = 0.1


class RunConsole:
    """Prints lines, and on a terminal a progress bar below them.

    Args:
        is_main: Whether this process prints at all.
        console: Where to print; standard output by default.
    """

    def __init__(self, *, is_main: bool, console: Console | None = None) -> None:
        self._is_main = is_main
        self._console = console
        self._progress: Progress | None = None
        self._task: Any = None
        self._total = 0
        self._next_refresh = 0.0

    @property
    def console(self) -> Console:
        """The rich console, made on first use: importing rich is not free."""
        if self._console is None:
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
        if self._progress is None:  # then rich would do the same in a hundred times the time
            file = sys.stdout if self._console is None else self._console.file
            print(line, file=file, flush=True)
        else:
            self.console.print(line, markup=False, emoji=False, highlight=False, soft_wrap=True)

    def start_progress(self, description: str, total: int, done: int = 0) -> None:
        """Show a bar of ``total`` steps, ``done`` of them done. Only on a terminal."""
        if not self._is_main or not self.console.is_terminal:
            return
        from rich import progress  # noqa: PLC0415

        self._progress = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.TaskProgressColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[eta]}"),
            progress.TextColumn("{task.fields[values]}"),
            console=self.console,
            auto_refresh=False,
        )
        self._total = total
        self._progress.start()
        self._task = self._progress.add_task(
            description, total=total, completed=done, eta="", values=""
        )

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
        fields: dict[str, Any] = {} if values is None else {"values": values}
        if clock is not None:
            fields["eta"] = f"eta {as_clock(clock.eta_s(done, self._total))}"
        self._progress.update(self._task, completed=done, description=description, **fields)
        self._progress.refresh()

    def stop_progress(self) -> None:
        """Take the bar down, leaving its last state on the terminal. Does nothing without one."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
