"""Choose the device of this process."""

import os
from collections.abc import Mapping
from typing import SupportsIndex

import torch

from mm_dist._devices import (
    CPU,
    DeviceRow,
    accelerator_rows,
    count_devices,
    device_module,
    find_row,
)
from mm_dist._errors import ArgumentTypeError, ConfigError, LaunchError

_LOCAL_RANK_VARIABLES = (
    "LOCAL_RANK",
    "SLURM_LOCALID",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "SLURM_STEP_GPUS",
)


def available_device_type() -> str:
    """Return the type of accelerator that this process can use, ``"cpu"`` if there is none.

    Probes at the time of the call, and stops at the first type that has a device.

    Example:
        >>> available_device_type()
        'cpu'
    """
    return next((row.name for row in accelerator_rows() if count_devices(row) > 0), CPU.name)


def local_device(
    local_rank: int, device_type: str | None = None, *, env: Mapping[str, str] | None = None
) -> torch.device:
    """Return the device that belongs to a local rank.

    Where a process sees one device only, that is its device: the scheduler has bound it already.

    Args:
        local_rank: Number of the process on its machine, from 0.
        device_type: ``"cuda"``, ``"npu"`` and so on. Defaults to ``available_device_type()``.
        env: The variables that an error prints. Defaults to those of this process.

    Raises:
        ArgumentTypeError: If ``local_rank`` is no whole number.
        ConfigError: If it is negative, or the device type is not known.
        LaunchError: If there are fewer devices than local ranks, or none.

    Example:
        >>> local_device(0, "cpu")
        device(type='cpu')
    """
    _check_local_rank(local_rank)
    row = find_row(device_type or available_device_type())
    if row is CPU:
        return torch.device("cpu")
    count = count_devices(row)
    if count == 1:
        return torch.device(row.name, 0)
    if local_rank < count:
        return torch.device(row.name, local_rank)
    variables = os.environ if env is None else env
    raise LaunchError(_describe_shortage(row, local_rank, count, variables))


def _check_local_rank(local_rank: object) -> None:
    if not isinstance(local_rank, SupportsIndex):
        raise ArgumentTypeError(
            f"local_rank={local_rank!r} is no whole number; pass int(os.environ['LOCAL_RANK']), or "
            "what init_dist returns."
        )
    if local_rank.__index__() < 0:
        raise ConfigError(
            f"local_rank={local_rank!r} is negative; the processes of a machine count from 0."
        )


def _describe_shortage(row: DeviceRow, local_rank: int, count: int, env: Mapping[str, str]) -> str:
    variables = describe_visibility(row, env)
    if count == 0:
        remedy = "use device_type='cpu', or install a driver and a torch for it"
    else:
        remedy = f"start at most {count} processes per machine, or bind one device to each"
    return (
        f"Local rank {local_rank} has no {row.name} device: this process sees {count} ({variables})"
        f"; {remedy}."
    )


def describe_visibility(row: DeviceRow, env: Mapping[str, str]) -> str:
    """Return the variables that decide which devices a process sees and which one it takes."""
    own = row.visible_devices_variable
    always = [f"{own}={env.get(own, 'not set')}"] if own else []
    names = (*row.other_variables, *_LOCAL_RANK_VARIABLES)
    return ", ".join([*always, *(f"{name}={env[name]}" for name in names if name in env)])


def set_current_device(device: torch.device) -> None:
    """Make ``device`` the current one of its type; the CPU and mps have no current device."""
    if device.type == "cpu":
        return
    set_device = getattr(device_module(find_row(device.type)), "set_device", None)
    if set_device is not None:
        set_device(device.index)


def current_device(device_type: str) -> torch.device:
    """Return the current device of an accelerator's type."""
    read_index = getattr(device_module(find_row(device_type)), "current_device", None)
    return torch.device(device_type, read_index() if read_index is not None else 0)
