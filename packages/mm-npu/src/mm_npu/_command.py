"""The ``mm-npu`` command, with the subcommand ``env``.

torch is imported late: a broken ``torch_npu`` ends ``import torch`` itself, and reporting that is
what the command is for.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import TYPE_CHECKING

from mm_npu._devices._torch_npu import AUTOLOAD_VARIABLE, set_environment
from mm_npu._errors import ConfigError

if TYPE_CHECKING:
    from mm_npu._devices._report import NpuReport

_USAGE_STATUS = 2
_BROKEN_PIPE_STATUS = 141  # as a shell reports a program that SIGPIPE ended
_NOT_FOUND = "not found"
_PATHS = {
    "torch_npu": "those of torch_npu",
    "portable": "the portable ones of mm-npu",
    "refused": "refused, since MM_NPU_STRICT requires an NPU",
}


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
    try:
        status = _print_environment(as_json=options.json)
        sys.stdout.flush()
    except ConfigError as error:
        sys.stderr.write(f"mm-npu: {error}\n")
        return _USAGE_STATUS
    except BrokenPipeError:
        # Otherwise the interpreter would report the broken pipe once more when it ends.
        sys.stdout = None
        return _BROKEN_PIPE_STATUS
    return status


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mm-npu", description="Report on Ascend NPUs.")
    parser.add_argument("--version", action="version", version=f"mm-npu {version('mm-npu')}")
    subcommands = parser.add_subparsers(dest="subcommand", required=True, metavar="COMMAND")
    env = subcommands.add_parser(
        "env",
        help="show what is installed, and whether an NPU can be used",
        description=(
            "Show which torch, torch_npu, CANN and driver are installed, which NPUs there are, "
            "which optimizers the NpuFused* names give here, and why."
        ),
        epilog="Exit status: 0 an NPU can be used; 1 none can; 2 usage.",
    )
    env.add_argument("--json", action="store_true", help="print JSON instead of the table")
    return parser


def _print_environment(*, as_json: bool) -> int:
    """Print what there is, and return 0 if an NPU can be used, else 1."""
    report = _look(dict(os.environ))
    if as_json:
        sys.stdout.write(json.dumps(asdict(report), indent=2) + "\n")
    else:
        rows = dict(_rows(report))
        width = max(map(len, rows))
        sys.stdout.writelines(f"{name:<{width}}  {value}\n" for name, value in rows.items())
    return 0 if report.reason is None else 1


def _look(env: Mapping[str, str]) -> "NpuReport":
    # Otherwise a broken torch_npu would end the import of torch; the report imports it later.
    set_environment(AUTOLOAD_VARIABLE, "0")
    try:
        from mm_npu._devices._report import npu_report  # noqa: PLC0415 - imports torch
    finally:
        set_environment(AUTOLOAD_VARIABLE, env.get(AUTOLOAD_VARIABLE))
    return npu_report(env)


def _rows(report: "NpuReport") -> Iterator[tuple[str, str]]:
    yield "mm-npu", report.mm_npu
    yield "torch", report.torch
    yield "torch_npu", report.torch_npu or _NOT_FOUND
    yield "CANN", report.cann or _NOT_FOUND
    yield "driver", report.driver or _NOT_FOUND
    yield "devices", ", ".join([str(report.device_count), *report.device_names])
    visible = report.visible_devices
    yield "ASCEND_RT_VISIBLE_DEVICES", "not set" if visible is None else repr(visible)
    yield "autoload of torch_npu", report.autoload
    yield "NpuFused* are", _PATHS[report.path]
    if report.reason is not None:
        yield "reason", report.reason
