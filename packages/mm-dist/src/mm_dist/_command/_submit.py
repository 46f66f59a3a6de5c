"""``mm-dist submit``: start a script through the client of Slurm, Ray or Kubernetes."""

import argparse
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mm_dist._command._engines import write_kubernetes, write_ray, write_slurm
from mm_dist._command._job import RULES, read_job
from mm_dist._command._output import print_text
from mm_dist._errors import ConfigError, LaunchError

_FILE = "submit.yaml"
_ENGINES = {"slurm": write_slurm, "ray": write_ray, "kubernetes": write_kubernetes}
_SCALARS = {key: rule for key, rule in RULES.items() if isinstance(rule, tuple)}


def submit(arguments: Sequence[str]) -> int:
    """Submit a script; return the exit status of the engine's client."""
    position = list(arguments).index("--") if "--" in arguments else len(arguments)
    options = _build_parser().parse_args(arguments[:position])
    script = list(arguments[position + 1 :])
    if script in ([], ["-m"]):
        raise ConfigError("submit: write the script after --, as in: ... -- train.py --resume")
    is_module = script[0] == "-m"
    file, beside = options.file, Path("" if is_module else script[0]).parent / _FILE
    if file is None and beside.is_file():
        file = beside
    given = {key: getattr(options, key) for key in _SCALARS}
    given[options.on] = dict(options.option or ()) or None
    job = read_job(file, given, script[1].rpartition(".")[2] if is_module else script[0])
    command, text = _ENGINES[options.on](job, script)
    if options.dry_run:
        print_text((text or shlex.join(command)).rstrip())
        return 0
    try:
        done = subprocess.run(command, input=text, text=True, check=False)  # noqa: S603
    except OSError as error:
        advice = f"Install the client of {options.on}; --dry-run prints what it would be given."
        raise LaunchError(f"{command[0]} cannot be started: {error.strerror}. {advice}") from error
    return done.returncode


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mm-dist submit",
        usage="%(prog)s --on ENGINE [options] -- SCRIPT [arguments]",
        description="Write what an engine's own client takes (sbatch, ray job submit, kubectl), "
        f"and start it. {_FILE} beside the script says what the job needs; options win. cpus, gpus "
        "and memory are those of one node.",
    )
    parser.add_argument("--on", required=True, choices=list(_ENGINES), help="the engine")
    parser.add_argument("--file", type=Path, help=f"in the place of {_FILE}")
    parser.add_argument("--dry-run", action="store_true", help="print it, and start nothing")
    for key, (_, form) in _SCALARS.items():
        action: Any = argparse.BooleanOptionalAction if key == "requeue" else "store"
        parser.add_argument(f"--{key.replace('_', '-')}", help=form, action=action)
    text = "of the engine's own, for Slurm any of sbatch: partition=gpu"
    pair = lambda text: text.partition("=")[::2] if "=" in text else (text, "True")  # noqa: E731
    parser.add_argument("--option", action="append", type=pair, metavar="KEY=VALUE", help=text)
    return parser
