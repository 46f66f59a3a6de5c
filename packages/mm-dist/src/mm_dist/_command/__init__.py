"""The ``mm-dist`` command: ``run``, ``env``, ``check`` and ``simulate``.

What a subcommand needs is imported when it is used.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version

from mm_dist._command._output import flush_output, write_error
from mm_dist._errors import ArgumentTypeError, ConfigError, MMDistError
from mm_dist._launchers import launcher_names

_USAGE_STATUS, _FAILURE_STATUS = 2, 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the ``mm-dist`` command.

    Args:
        arguments: Defaults to those of this process.

    Returns:
        The exit status: 0 for success, 2 for bad usage, and what each subcommand documents.

    Raises:
        SystemExit: Of argparse, after ``--help``, ``--version`` or bad usage; with status 141
            where the output's reader is gone.

    Example:
        >>> main(["env", "--launcher", "none", "--json"])  # doctest: +SKIP
        0
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if given[:1] == ["run"]:
            # Not by argparse: what follows the script belongs to the script, options included.
            from mm_dist._command._run import run_script  # noqa: PLC0415

            return run_script(given[1:])
        return _run_subcommand(_build_parser().parse_args(given))
    except MMDistError as error:
        write_error(f"mm-dist: {error}")
        is_usage = isinstance(error, (ConfigError, ArgumentTypeError))
        return _USAGE_STATUS if is_usage else _FAILURE_STATUS
    finally:
        # argparse leaves its help to the interpreter's end, which complains about a closed pipe.
        flush_output()


def _run_subcommand(options: argparse.Namespace) -> int:
    if options.subcommand == "env":
        from mm_dist._command._env import print_environment  # noqa: PLC0415

        return print_environment(options)
    if options.subcommand == "check":
        from mm_dist._command._check import check_cluster  # noqa: PLC0415

        return check_cluster(options)
    from mm_dist._command._simulate import simulate_rank  # noqa: PLC0415

    return simulate_rank(options)


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mm-dist", description="Start, explain, check and simulate distributed training."
    )
    parser.add_argument("--version", action="version", version=f"mm-dist {version('mm-dist')}")
    subcommands = parser.add_subparsers(dest="subcommand", required=True, metavar="COMMAND")
    subcommands.add_parser(
        "run", add_help=False, help="start a script on every device of one or more machines"
    )
    _add_env(subcommands.add_parser("env", help="say what would be chosen here, and why"))
    _add_check(subcommands.add_parser("check", help="try the machines before a long job"))
    _add_simulate(
        subcommands.add_parser("simulate", help="measure one rank of a large job on this machine")
    )
    return parser


def _add_env(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Say which launcher, ranks, address, device and backend init_dist would choose in this "
        "environment, from which variable each comes, and which versions are installed."
    )
    _add_launcher(parser)
    _add_json(parser)


def _add_check(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Start it as the training would be started (mm-dist run -m mm_dist check, srun mm-dist "
        "check, mpirun mm-dist check). Every rank compares versions, devices and the hash of "
        "--config with the others, connects to every other one, and takes part in all-reduces."
    )
    parser.epilog = (
        "Exit status, the same on every rank: 0 all is well; 10+R the lowest rank that differs, "
        "is absent or cannot be reached is R (74: R is 64 or more); 1 another failure; 2 usage."
    )
    _add_launcher(parser)
    _add_json(parser)
    parser.add_argument("--config", metavar="FILE", help="a file that has to be equal everywhere")
    parser.add_argument("--backend", help="as for init_dist (default: that of the device)")
    parser.add_argument("--device-type", "--device_type", help="cpu, cuda, npu, ...")
    parser.add_argument(
        "--timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="how long to wait for absent ranks, and for each later part (default: 60)",
    )
    parser.add_argument(
        "--max-size",
        "--max_size",
        type=int,
        default=16 * 2**20,
        metavar="BYTES",
        help="largest all-reduce to measure; 0 measures none (default: 16777216)",
    )


def _add_simulate(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Go through the start of one rank of a large job with torch's fake process group: no "
        "other rank, no rendezvous and no communication. Shows time and memory of each step."
    )
    parser.add_argument("--world-size", "--world_size", type=int, required=True, metavar="N")
    parser.add_argument("--rank", type=int, default=0, metavar="R")
    parser.add_argument(
        "--local-world-size",
        "--local_world_size",
        type=int,
        default=8,
        metavar="N",
        help="ranks per machine (default: 8, or all of them if they are fewer)",
    )
    parser.add_argument(
        "--model",
        metavar="MODULE:FACTORY",
        help="called without arguments, returns the module to wrap (default: a small one)",
    )
    parser.add_argument(
        "--shard", action="store_true", help="also shard the model over all ranks (fully_shard)"
    )
    _add_json(parser)


def _add_launcher(parser: argparse.ArgumentParser) -> None:
    names = launcher_names()
    parser.add_argument(
        "--launcher",
        choices=names,
        default="auto",
        metavar="NAME",
        help=f"{', '.join(names)} (default: auto)",
    )


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE",
        help="write JSON to FILE, or print it instead of the table",
    )
