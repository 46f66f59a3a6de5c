"""Explain what would be chosen in an environment, from which variable, and why."""

import sys
from collections.abc import Callable, Mapping
from typing import NamedTuple

from mm_dist._backends import choose_backend
from mm_dist._device_choice import available_device_type, describe_visibility, local_device
from mm_dist._device_sharing import describe_shared_device
from mm_dist._devices import CPU, count_devices, find_row
from mm_dist._errors import MMDistError
from mm_dist._launchers import (
    LaunchEnvironment,
    describe_misuse,
    libuv_variables,
    observe_job,
    select_launcher,
)
from mm_dist._launchers._reasons import explain_detection


class EnvironmentRow(NamedTuple):
    """One line of the explanation.

    Attributes:
        field: What is explained, as ``rank``; ``warning`` and ``error`` may come several times.
        value: What would be used, or the message of the error.
        source: The variable that it comes from, or the reason.
    """

    field: str
    value: str
    source: str


_NUMBERS = (
    "rank",
    "local_rank",
    "world_size",
    "local_world_size",
    "num_nodes",
    "node_rank",
    "master_addr",
    "master_port",
)


def explain_environment(
    env: Mapping[str, str], launcher: str = "auto", device_type: str | None = None
) -> list[EnvironmentRow]:
    """Say what ``init_dist`` would choose in an environment, and why; joins nothing.

    An environment that cannot be used is explained as far as it goes: each error is a row called
    ``error``, and nothing is raised.

    Args:
        env: The variables, usually ``os.environ``.
        launcher: What would be asked for.
        device_type: What would be asked for; by default the accelerator that is there.

    Example:
        >>> explain_environment({}, device_type="cpu")[0].value
        'none'
    """
    rows: list[EnvironmentRow] = []
    env = observe_job(env)
    read = _collect(rows, lambda: _explain_launcher(rows, env, launcher))
    if read is not None:
        _explain_numbers(rows, env, read)
        _add_warning(rows, describe_misuse(launcher, read, env))
    _collect(rows, lambda: _explain_device(rows, env, read, device_type))
    for name, value in libuv_variables(sys.platform, env).items():
        rows.append(EnvironmentRow(name, value, "torch has no libuv on Windows"))
    return rows


def _collect(
    rows: list[EnvironmentRow], explain: Callable[[], LaunchEnvironment | None]
) -> LaunchEnvironment | None:
    try:
        return explain()
    except MMDistError as error:
        rows.append(EnvironmentRow("error", str(error), type(error).__name__))
    except Exception as error:  # noqa: BLE001 (a plugin may raise anything; it is to be shown)
        rows.append(EnvironmentRow("error", f"{type(error).__name__}: {error}", "a plugin"))
    return None


def _explain_launcher(
    rows: list[EnvironmentRow], env: Mapping[str, str], launcher: str
) -> LaunchEnvironment:
    # First who answers what: it is the explanation even where the answers contradict each other.
    answers = explain_detection(env) if launcher == "auto" else {}
    first = next((name for name, (is_found, _) in answers.items() if is_found), None)
    if first is not None:
        rows.append(EnvironmentRow("launcher", first, answers[first][1]))
    for name, (is_found, reason) in answers.items():
        if name not in (first, "none"):
            value = f"would come after {first}" if is_found else "no"
            rows.append(EnvironmentRow(f"launcher {name}", value, reason))
    chosen = select_launcher(launcher, env)
    if first is None:
        rows.append(EnvironmentRow("launcher", chosen.name, "asked for"))
    return chosen.read(env)


def _explain_numbers(
    rows: list[EnvironmentRow], env: Mapping[str, str], read: LaunchEnvironment
) -> None:
    is_single = read.master_addr is None
    for field in _NUMBERS:
        value = getattr(read, field)
        source = read.sources.get(field) or _tell_source(read, value)
        if source in env:
            source = f"{source}={env[source]}"
        text = ("not needed" if is_single else "unknown") if value is None else str(value)
        rows.append(EnvironmentRow(field, text, source))


def _tell_source(read: LaunchEnvironment, value: object) -> str:
    """Say where a number comes from that its launcher says nothing about."""
    if read.master_addr is None:
        return "one process"
    return "no variable says so" if value is None else f"launcher {read.launcher!r} says so"


def _explain_device(
    rows: list[EnvironmentRow],
    env: Mapping[str, str],
    read: LaunchEnvironment | None,
    device_type: str | None,
) -> None:
    chosen = device_type or available_device_type()
    row = find_row(chosen)
    if device_type is not None:
        why = "asked for"
    else:
        why = "no accelerator is available" if row is CPU else "available here"
    rows.append(EnvironmentRow("device_type", chosen, why))
    if row is not CPU:
        count = f"{count_devices(row)} visible"
        rows.append(EnvironmentRow("devices", count, describe_visibility(row, env)))
    backend = choose_backend(None, chosen)
    rows.append(EnvironmentRow("backend", backend, f"that of {chosen}"))
    if read is None:
        return
    device = local_device(read.local_rank, chosen, env=env)
    reason = f"local rank {read.local_rank}" if row is not CPU else "the CPU is one device"
    rows.append(EnvironmentRow("device", str(device), reason))
    _add_warning(rows, describe_shared_device(read, device, backend, env))


def _add_warning(rows: list[EnvironmentRow], message: str | None) -> None:
    if message is not None:
        rows.append(EnvironmentRow("warning", message, ""))
