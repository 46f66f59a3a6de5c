"""``mm-dist env``: what init_dist would choose here, from which variable, and why."""

import argparse
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from importlib.metadata import distributions
from typing import NamedTuple

import torch

from mm_dist._backends import choose_backend
from mm_dist._command._output import format_table, print_text
from mm_dist._devices import (
    CPU,
    accelerator_rows,
    available_device_type,
    count_devices,
    describe_visibility,
    find_row,
    local_device,
)
from mm_dist._launchers._environment import LaunchEnvironment
from mm_dist._launchers._misuse import describe_misuse
from mm_dist._launchers._mpi import RANK_VARIABLES
from mm_dist._launchers._selection import ask_launchers, select_launcher

_NUMBERS = [f.name for f in fields(LaunchEnvironment) if f.name not in ("launcher", "sources")]
# What each launcher looks at.
_VARIABLES = {
    "pytorch": ("RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", "PET_NNODES", "PET_NODE_RANK"),
    "slurm": ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID"),
    "mpi": RANK_VARIABLES,
}


class EnvironmentRow(NamedTuple):
    """What is explained, what would be used, and the variable or reason that it comes from."""

    field: str
    value: str
    source: str


def run(options: argparse.Namespace) -> int:
    """Print what would be chosen in this environment; return 1 if it cannot be used as it is."""
    rows = explain_environment(os.environ, options.launcher)
    warnings, errors = ([r.value for r in rows if r.field == kind] for kind in ("warning", "error"))
    chosen = [row for row in rows if row.field not in ("warning", "error")]
    parts = [
        format_table(["what", "value", "from"], chosen),
        *(f"warning: {text}" for text in warnings),
        *(f"cannot be used: {text}" for text in errors),
        format_table(["installed", "version"], read_versions().items()),
    ]
    print_text("\n\n".join(parts))
    return 1 if errors else 0


def read_versions() -> dict[str, str]:
    """Return the versions of what can make ranks differ, modules that add devices included."""
    found = {"python": platform.python_version(), "torch": str(torch.__version__)}
    runtimes = [name for name in ("cuda", "hip", "xpu") if getattr(torch.version, name, None)]
    if runtimes:
        found["runtime"] = f"{runtimes[0]} {getattr(torch.version, runtimes[0])}"
    extensions = [e for row in accelerator_rows() for e in (row.extension, row.backend_extension)]
    wanted = {"numpy", "torchvision", *(name.partition(".")[0] for name in extensions if name)}
    others: dict[str, str] = {}
    for distribution in distributions():
        name = str(distribution.metadata["Name"])
        if name.startswith("mm-") or name.lower().replace("-", "_") in wanted:
            # The first on the path is the one that is imported.
            others.setdefault(name, str(distribution.version))
    return found | dict(sorted(others.items()))


def explain_environment(env: Mapping[str, str], launcher: str = "auto") -> list[EnvironmentRow]:
    """Say what ``init_dist`` would choose in an environment, and why; joins nothing."""
    rows: list[EnvironmentRow] = []
    read = None
    with _collecting_errors(rows):
        read = _explain_launcher(rows, env, launcher)
        rows += [_explain_number(env, read, field) for field in _NUMBERS]
        misuse = describe_misuse(launcher, read, env)
        rows += [EnvironmentRow("warning", misuse, "")] if misuse else []
    with _collecting_errors(rows):
        _explain_device(rows, env, read)
    return rows


@contextmanager
def _collecting_errors(rows: list[EnvironmentRow]) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 (a plugin may raise anything; it is to be shown)
        rows.append(EnvironmentRow("error", f"{error}", type(error).__name__))


def _explain_launcher(
    rows: list[EnvironmentRow], env: Mapping[str, str], launcher: str
) -> LaunchEnvironment:
    if launcher != "auto":
        rows.append(EnvironmentRow("launcher", launcher, "asked for"))
        return select_launcher(launcher, env).read(env)
    # First who answers what: it is the explanation even where the answers contradict each other.
    answers = [(each.name, is_found) for each, is_found in ask_launchers(env)]
    first = next(name for name, is_found in answers if is_found)
    rows.append(EnvironmentRow("launcher", first, _name_variables(env, first)))
    for name, is_found in answers:
        if name not in (first, "none"):
            value = f"would come after {first}" if is_found else "no"
            rows.append(EnvironmentRow(f"launcher {name}", value, _name_variables(env, name)))
    return select_launcher(launcher, env).read(env)


def _name_variables(env: Mapping[str, str], launcher: str) -> str:
    names = _VARIABLES.get(launcher, ())
    found = [f"{name}={env[name]}" for name in names if env.get(name)]
    if launcher == "none":
        return "nothing else started this process"
    return ", ".join(found) or ("none of its variables is set" if names else "its plugin says so")


def _explain_number(env: Mapping[str, str], read: LaunchEnvironment, field: str) -> EnvironmentRow:
    value, source = getattr(read, field), read.sources.get(field)
    if source is not None and source in env:
        source = f"{source}={env[source]}"
    is_single = read.master_addr is None
    if value is None:
        unknown = "one process" if is_single else "no variable says so"
        return EnvironmentRow(field, "not needed" if is_single else "unknown", unknown)
    default = "one process" if is_single else f"launcher {read.launcher!r} says so"
    return EnvironmentRow(field, str(value), source or default)


def _explain_device(
    rows: list[EnvironmentRow], env: Mapping[str, str], read: LaunchEnvironment | None
) -> None:
    chosen = available_device_type()
    row = find_row(chosen)
    why = "no accelerator is available" if row is CPU else "available here"
    rows.append(EnvironmentRow("device_type", chosen, why))
    if row is not CPU:
        count = f"{count_devices(row)} visible"
        rows.append(EnvironmentRow("devices", count, describe_visibility(row, env)))
    backend = choose_backend(None, chosen)
    rows.append(EnvironmentRow("backend", backend, f"default for {chosen}"))
    if read is not None:
        device = local_device(read.local_rank, chosen)
        rows.append(EnvironmentRow("device", str(device), f"local rank {read.local_rank}"))
