"""From the command line to an exit status."""

from __future__ import annotations

import gc
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import cast

from ._failure import INTERRUPTED_STATUS, report_failure
from ._parser import build_parser

__all__ = ["main"]

# Module and function of each command, imported when it is asked for.
_COMMANDS = {
    "train": ("_train", "train"),
    "test": ("_test", "test"),
    "check": ("_check", "check"),
    "plot": ("_plot", "plot"),
    "verify-resume": ("_verify_resume", "verify"),
    "convert": ("_convert", "convert"),
    "replay": ("_replay", "replay"),
    "find-lr": ("_find_lr", "find_lr"),
    "find-batch-size": ("_find_batch_size", "find_batch"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the ``mm-runner`` command.

    Args:
        arguments: Defaults to those of this process.

    Returns:
        The exit status: 0 for success; 1 for a failure, told in one message where it is the user's
        to repair; 130 after Ctrl-C.

    Raises:
        SystemExit: With status 2 after wrong usage; with 75 after a training that was preempted and
            has saved where it was: start it again with ``--resume``.

    Example:
        >>> main(["check", "config.yaml"])  # doctest: +SKIP
        0
    """
    options = build_parser().parse_args(arguments)
    try:
        with _no_collections(options.command):
            return _command(options)(options)
    except KeyboardInterrupt:
        sys.stderr.write("mm-runner: interrupted\n")
        return INTERRUPTED_STATUS
    except Exception as error:  # noqa: BLE001 - it is shown, and becomes the status
        return report_failure(error, show_traceback=options.traceback)
    finally:
        _end_output()


def _end_output() -> None:
    """Leave nothing for Python to write at its end where what read the output has ended."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        with suppress(OSError, ValueError):  # not a file of the system's
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _command(options: Namespace) -> Callable[[Namespace], int]:
    module, function = _COMMANDS[options.command]
    return cast(
        "Callable[[Namespace], int]",
        getattr(import_module(f".{module}", __package__), function),
    )


@contextmanager
def _no_collections(command: str) -> Iterator[None]:
    """Look for no garbage in a short command: to go through torch's objects once takes 0.2 s."""
    is_on = command == "check" and gc.isenabled()
    if not is_on:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
