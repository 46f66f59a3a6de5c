"""The ``mm-npu`` command: ``env``.

What it needs is imported when it is used, and torch not before: a ``torch_npu`` that is broken ends
``import torch`` itself, and telling of that is what the command is for.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version

from mm_npu._errors import ConfigError

_USAGE_STATUS = 2
_BROKEN_PIPE_STATUS = 141  # as a shell reports a program that SIGPIPE ended


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the ``mm-npu`` command.

    Args:
        arguments: Defaults to those of this process.

    Returns:
        The exit status of ``env``: 0 if an NPU can be used, 1 if none can, 2 if a variable has a
        value that is not allowed.

    Raises:
        SystemExit: Of argparse, after ``--help`` and ``--version`` (0) and bad usage (2).

    Example:
        >>> main(["env", "--json"])  # doctest: +SKIP
        1
    """
    options = _build_parser().parse_args(sys.argv[1:] if arguments is None else arguments)
    from mm_npu._command._env import print_environment  # noqa: PLC0415

    try:
        status = print_environment(as_json=options.json)
        sys.stdout.flush()
    except ConfigError as error:
        sys.stderr.write(f"mm-npu: {error}\n")
        return _USAGE_STATUS
    except BrokenPipeError:
        # Nobody reads any more; the interpreter would complain of that when it ends.
        sys.stdout = None
        return _BROKEN_PIPE_STATUS
    return status


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mm-npu", description="Tell about Ascend NPUs.")
    parser.add_argument("--version", action="version", version=f"mm-npu {version('mm-npu')}")
    subcommands = parser.add_subparsers(dest="subcommand", required=True, metavar="COMMAND")
    env = subcommands.add_parser(
        "env",
        help="say what is installed, and whether an NPU can be used",
        description=(
            "Say which torch, torch_npu, CANN and driver are installed, which NPUs there are, "
            "which optimizers the NpuFused* names give here, and why."
        ),
        epilog="Exit status: 0 an NPU can be used; 1 none can; 2 usage.",
    )
    env.add_argument("--json", action="store_true", help="print JSON instead of the table")
    return parser
