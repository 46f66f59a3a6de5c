"""Read the options of ``mm-dist run``: those of torchrun, in both spellings on every torch."""

import argparse
import os
from collections.abc import Sequence

_DESCRIPTION = (
    "Start a script once per device, with torch's elastic launcher behind it. All options of "
    "torchrun are taken, with dashes or underscores, and so are Kubernetes' PET_* variables."
)
_HELP_NPROC = (
    "ranks on this machine: a number, auto (accelerators, else cores), gpu, cpu, npu, xpu, ... "
    "Defaults to the number of accelerators, else 1."
)
_HELP_LOG_DIR = (
    "write what each rank prints to DIR/rank<N>.log as well as to the console; what torch elastic "
    "keeps of every attempt lies in DIR/elastic."
)


def read_run_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Return torchrun's options; ``None`` stands for those that mm-dist chooses itself.

    Raises:
        SystemExit: Of argparse, on bad usage (status 2).
    """
    return _build_parser().parse_args(arguments)


def _build_parser() -> argparse.ArgumentParser:
    from torch.distributed.run import get_args_parser  # noqa: PLC0415 (slow, and only needed here)

    parser: argparse.ArgumentParser = get_args_parser()
    parser.prog = "mm-dist run"
    parser.description = _DESCRIPTION
    actions = {action.dest: action for action in parser._actions}  # noqa: SLF001 (no public way)
    if "local_addr" not in actions:
        parser.add_argument("--local-addr", help="needs torch 2.0 or newer")
    _add_spellings(parser)
    actions["nproc_per_node"].help = _HELP_NPROC
    actions["log_dir"].help = _HELP_LOG_DIR
    # Kubernetes' variables have become torch's defaults already, and stay.
    for name in ("nproc_per_node", "master_addr", "master_port", "node_rank"):
        if f"PET_{name.upper()}" not in os.environ:
            parser.set_defaults(**{name: None})
    if "PET_MONITOR_INTERVAL" not in os.environ:
        # torch 1.13 looks every 5 s whether a rank has failed; newer ones more often.
        parser.set_defaults(monitor_interval=0.1)
    return parser


def _add_spellings(parser: argparse.ArgumentParser) -> None:
    """Take ``--some-option`` and ``--some_option`` alike; torch 1.13 knows underscores only."""
    known = parser._option_string_actions  # noqa: SLF001 (argparse has no public way)
    for spelling, action in list(known.items()):
        if not spelling.startswith("--"):
            continue
        words = spelling[2:]
        for other in ("--" + words.replace("_", "-"), "--" + words.replace("-", "_")):
            known.setdefault(other, action)
