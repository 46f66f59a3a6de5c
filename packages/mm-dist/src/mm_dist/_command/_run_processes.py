"""How many ranks a machine runs, and how many threads each of them gets."""

import os
from pathlib import Path

from mm_dist._device_choice import available_device_type
from mm_dist._devices import count_devices, find_row
from mm_dist._errors import ConfigError

_CGROUP_LIMIT = Path("/sys/fs/cgroup/cpu.max")


def count_processes(asked: str | None) -> int:
    """Return the number of ranks for this machine.

    Args:
        asked: A number, ``auto``, ``gpu``, ``cpu``, a device type, or ``None`` for the default.

    Raises:
        ConfigError: If it is none of these, or the machine has no such device.
    """
    if asked is None or asked == "auto":
        device_type = available_device_type()
        if device_type != "cpu":
            return count_devices(find_row(device_type))
        return 1 if asked is None else count_cores()
    if asked == "cpu":
        return count_cores()
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    return _count_accelerators(asked)


def _count_accelerators(asked: str) -> int:
    try:
        row = find_row("cuda" if asked == "gpu" else asked)
    except ConfigError as error:
        raise ConfigError(
            f"--nproc-per-node={asked} is not known; give a number of at least 1, auto, gpu, cpu "
            f"or a device type. {error}"
        ) from error
    count = count_devices(row)
    if count == 0:
        raise ConfigError(
            f"--nproc-per-node={asked} asks for one rank per {row.name} device, and this machine "
            "shows none; give a number, or leave the option out."
        )
    return count


def count_cores() -> int:
    """Return how many cores this process may use: its affinity, and its container's limit."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(cores or 1, _read_container_limit() or cores or 1))


def _read_container_limit() -> int | None:
    try:
        quota, period = _CGROUP_LIMIT.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return None
    return int(quota) // int(period) if quota.isdecimal() else None


def choose_threads(num_processes: int) -> int:
    """Return how many threads each rank's operators get: the cores shared out, at least 1."""
    return max(1, count_cores() // num_processes)
