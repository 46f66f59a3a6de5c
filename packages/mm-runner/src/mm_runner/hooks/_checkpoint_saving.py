"""Saving with its outcome learnt now or, where a thread writes, at the next opportunity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mm_runner._main_process import run_on_main
from mm_runner.checkpoint import BackgroundWriter
from mm_runner.errors import CheckpointWriteError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mm_runner.run_view import RunView

__all__ = ["Save", "Saving"]


@dataclass(frozen=True)
class Save:
    """One file to be written.

    Args:
        path: The file.
        num_steps: Steps of training that it holds.
        options: Of ``Runner.save_checkpoint``.
        on_written: Called on all processes once it is known to be whole.
        on_failed: Called on all processes once it is known to have failed.
        on_main: Called on the main process as soon as the file is whole, maybe by another thread.
        kind: ``"numbered"``, ``"best"``, ``"last"`` of training, or at its ``"ending"``, where
            nothing follows.
    """

    path: Path
    num_steps: int
    options: dict[str, Any]
    on_written: Callable[[], None]
    on_failed: Callable[[], None]
    on_main: Callable[[], None] | None = None
    kind: str = "numbered"


class Saving:
    """Saves files, and reports what fails; training goes on.

    Every process must make the same calls.

    Args:
        in_background: Let a thread write a copy, one at a time.
    """

    def __init__(self, *, in_background: bool) -> None:
        self._writer = BackgroundWriter() if in_background else None
        self._unsettled: Save | None = None

    def save(self, runner: RunView, save: Save, *, and_wait: bool = False) -> None:
        """Save, after the file under way.

        Args:
            runner: The run.
            save: What to save.
            and_wait: Return when the file is whole.
        """
        self.settle(runner)
        try:
            runner.save_checkpoint(
                save.path.parent,
                save.path.name,
                writer=self._writer,
                then=save.on_main,
                **save.options,
            )
        except CheckpointWriteError as error:
            _fail(runner, save, error)
            return
        if self._writer is None:
            save.on_written()
            return
        self._unsettled = save
        if and_wait:
            self.settle(runner)

    def settle(self, runner: RunView, *, is_over: bool = False) -> bool:
        """Wait for the file under way, if any; tell whether it was written.

        Args:
            runner: The run.
            is_over: Whether training is, so that no interval is to come.
        """
        save, self._unsettled = self._unsettled, None
        if save is None or self._writer is None:
            return True
        try:
            self._writer.join()  # its part of a sharded model
            run_on_main(self._writer.wait)
        except CheckpointWriteError as error:
            _fail(runner, save, error, is_over=is_over)
            return False
        save.on_written()
        return True

    def drain(self) -> None:
        """Wait for the file under way on this process alone, whatever becomes of it."""
        if self._writer is not None:
            self._writer.abandon()


def _fail(
    runner: RunView, save: Save, error: CheckpointWriteError, *, is_over: bool = False
) -> None:
    save.on_failed()
    is_cut_short = getattr(runner.train_loop, "stop_training", False)
    is_over = is_over or is_cut_short or save.num_steps >= runner.max_iters
    runner.logger.error(f"{error} {_outlook(save.kind, is_over=is_over)}".rstrip())


def _outlook(kind: str, *, is_over: bool) -> str:
    """Return what follows a file that could not be written."""
    if kind == "ending":
        return ""
    if kind == "last":
        return "It is tried once more when training ends."
    if is_over:
        return "Training ends without it."
    if kind == "best":
        return "Training goes on; the next one that is better is saved."
    return "Training goes on; the next interval saves again."
