"""The ``mm-dist`` command: ``run``, ``submit``, ``env``, ``check`` and ``simulate``.

Each subcommand is imported when it is used.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version

from mm_dist._command._output import print_error
from mm_dist._errors import ArgumentTypeError, ConfigError, MMDistError
from mm_dist._launchers._selection import launcher_names

_USAGE_STATUS, _FAILURE_STATUS = 2, 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the ``mm-dist`` command."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if given[:1] == ["run"]:
            # Not parsed here: what follows the script belongs to the script, options included.
            from mm_dist._command._run import run_script  # noqa: PLC0415

            return run_script(given[1:])
        if given[:1] == ["submit"]:
            from mm_dist._command._submit import submit  # noqa: PLC0415

            return submit(given[1:])
        options = _build_parser().parse_args(given)
        module = import_module(f"mm_dist._command._{options.subcommand}")
        status: int = module.run(options)
    except MMDistError as error:
        print_error(f"mm-dist: {error}")
        is_usage = isinstance(error, (ConfigError, ArgumentTypeError))
        return _USAGE_STATUS if is_usage else _FAILURE_STATUS
    return status


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mm-dist", description="Start, explain, check and simulate distributed training."
    )
    parser.add_argument("--version", action="version", version=f"mm-dist {version('mm-dist')}")
    subcommands = parser.add_subparsers(dest="subcommand", required=True, metavar="COMMAND")
    subcommands.add_parser(
        "run", add_help=False, help="start a script on every device of one or more machines"
    )
    subcommands.add_parser(
        "submit", add_help=False, help="start a script as a job of Slurm, Ray or Kubernetes"
    )
    env = subcommands.add_parser(
        "env",
        help="show what init_dist would choose here, and why",
        description="Show which launcher, ranks, address, device and backend init_dist would "
        "choose in this environment, from which variable each comes, and installed versions.",
    )
    check = subcommands.add_parser(
        "check",
        help="try the machines before a long job",
        description="Start it as the training would be started (mm-dist run -m mm_dist check, "
        "srun mm-dist check, mpirun mm-dist check). Every rank compares versions, devices and the "
        "hash of --config with the others, connects to every other rank, and times all-reduces.",
        epilog="Rank 0 reports, and exits with 0 if there is no problem, else with 1.",
    )
    simulate = subcommands.add_parser(
        "simulate",
        help="measure one rank of a large job on this machine",
        description="Start one rank of a large job with torch's fake process group: no other "
        "rank, no rendezvous and no communication. Shows time and memory of each step.",
    )
    for subparser in (env, check):
        names = launcher_names()
        subparser.add_argument(
            "--launcher",
            choices=names,
            default="auto",
            metavar="NAME",
            help=f"{', '.join(names)} (default: auto)",
        )
    check.add_argument("--config", metavar="FILE", help="a file that must be equal everywhere")
    check.add_argument("--backend", help="as for init_dist (default: that of the device)")
    check.add_argument(
        "--timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="how long to wait for absent ranks, and for each later part (default: 60)",
    )
    simulate.add_argument("--world-size", "--world_size", type=int, required=True, metavar="N")
    simulate.add_argument("--rank", type=int, default=0, metavar="R")
    simulate.add_argument(
        "--model",
        metavar="MODULE:FACTORY",
        help="called without arguments, returns the module to wrap (default: a small one)",
    )
    return parser
