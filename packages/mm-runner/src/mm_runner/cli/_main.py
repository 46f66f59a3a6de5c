"""From the command line to an exit status."""

from __future__ import annotations

import inspect
import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import entry_points, version
from typing import cast

from ._configuration import located

_GROUP = "mm.commands"
_EPILOG = (
    "Exit status: 0 success; 1 failure; 2 wrong usage; 75 preempted, saved, to be started again "
    "with --resume; 130 Ctrl-C. A configuration is YAML, JSON, or Python, which is executed: use "
    "only files that you trust. Modules are also imported from its folder and from the current one."
)
_OUR_PACKAGES = ("mm_amp", "mm_compile", "mm_dist", "mm_npu", "mm_runner")
# Longer than launchers on busy machines take to see that a process ended; torchrun looks every 5 s.
_PATIENCE_S = 15.0
_LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")


# A subcommand adds its arguments to the parser, and returns the function that runs it, whose result
# is the exit status (None for 0). The first line of its docstring is its entry in the list of
# commands, the rest its help. Its module should import nothing heavy: the list stays fast.
Command = Callable[[ArgumentParser], Callable[[Namespace], "int | None"]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the ``mm-runner`` command.

    Args:
        arguments: Defaults to those of this process.

    Returns:
        The exit status: 0 for success; 1 for a failure, in one message where it is the user's
        to repair; 130 after Ctrl-C.

    Raises:
        SystemExit: With status 2 after wrong usage; with 75 after a training that was preempted and
            has saved its state: start it again with ``--resume``.

    Example:
        >>> main(["check", "config.yaml"])  # doctest: +SKIP
        0
    """
    arguments = [_with_dashes(one) for one in (sys.argv[1:] if arguments is None else arguments)]
    options = _build_parser(arguments).parse_args(arguments)
    try:
        return options.run(options) or 0
    except KeyboardInterrupt:
        sys.stderr.write("mm-runner: interrupted\n")
        return 130
    except Exception as error:  # noqa: BLE001 - it is shown, and becomes the status
        _report_failure(located(error, options), show_traceback=options.traceback)
        return 1
    finally:
        _end_output()


def _with_dashes(argument: str) -> str:
    """Return ``--work-dir`` for ``--work_dir``, which MMEngine's tools take too."""
    if not argument.startswith("--"):
        return argument
    name, separator, value = argument.partition("=")
    return f"{name.replace('_', '-')}{separator}{value}"


def _build_parser(arguments: Sequence[str]) -> ArgumentParser:
    """Return the parser, with the command in ``arguments``, or with all if there is none."""
    parser = ArgumentParser(
        prog="mm-runner",
        description="Train, test and examine models from their configuration.",
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"mm-runner {version('mm-runner')}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    chosen = next((one for one in arguments if not one.startswith("-")), None)
    found = entry_points(group=_GROUP)
    if chosen in found.names:  # the others may be slow to import, or broken
        found = found.select(name=chosen)
    for entry in found:
        command = cast("Command", entry.load())
        title, _, text = (inspect.getdoc(command) or entry.name).partition("\n\n")
        own = subparsers.add_parser(
            entry.name,
            help=title.rstrip("."),
            description=text or title,
            epilog=_EPILOG,
            allow_abbrev=False,
        )
        if entry.name == chosen:
            own.set_defaults(run=command(own))
            own.add_argument(
                "--traceback", action="store_true", help="show the traceback of every error"
            )
    return parser


def _report_failure(error: Exception, *, show_traceback: bool) -> None:
    """Print ``error``: one message for what the user can repair, else the traceback.

    All processes of a machine have the same configuration, so the others than the first wait before
    they print such a message: the launcher ends them in the meantime.
    """
    is_ours = any(one.__module__.partition(".")[0] in _OUR_PACKAGES for one in type(error).__mro__)
    if show_traceback or not is_ours:
        # mm-dist's hook, once there is a process group: it reports to the other ranks.
        sys.excepthook(type(error), error, error.__traceback__)
        return
    ranks = [os.environ[name] for name in _LOCAL_RANKS if name in os.environ]
    if ranks and ranks[0] != "0":
        time.sleep(_PATIENCE_S)
    sys.stderr.write(f"mm-runner: {error}\n")
    sys.stderr.flush()


def _end_output() -> None:
    """Flush the output; discard the rest where its reader has ended, as in ``| head``."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        with suppress(OSError, ValueError):  # not a file of the system's
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
