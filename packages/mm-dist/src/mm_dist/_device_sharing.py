"""Tell from variables that processes of one machine share a device."""

from collections.abc import Mapping

import torch

from mm_dist._backends import backend_names
from mm_dist._device_choice import describe_visibility
from mm_dist._devices import DeviceRow, count_devices, find_row
from mm_dist._launchers import LaunchEnvironment


def describe_shared_device(
    environment: LaunchEnvironment,
    device: torch.device,
    backend: str | None,
    env: Mapping[str, str],
) -> str | None:
    """Return a warning if several local ranks were given one device, else ``None``.

    NCCL and its like refuse that ("duplicate GPU") in the first collective. A process that sees
    one device may well have it for itself, so only what variables prove is told, and only to
    local rank 1, the first one whose device is taken.

    Args:
        environment: This process's place.
        device: The device that it uses.
        backend: The backend that it uses.
        env: The variables of this process.
    """
    if device.type == "cpu" or environment.local_rank != 1:
        return None
    row = find_row(device.type)
    names = backend_names(backend or "")
    is_refused = any(name in row.process_group_backends and name != "gloo" for name in names)
    if not is_refused or count_devices(row) != 1:
        return None
    reason = _find_proof(environment, row, env)
    return reason and (
        f"The {environment.local_world_size or 'several'} processes of this machine share one "
        f"{row.name} device: {reason} ({describe_visibility(row, env)}). Backend {backend!r} "
        "needs a device for each; start one process here, or use backend='gloo'."
    )


def _find_proof(
    environment: LaunchEnvironment, row: DeviceRow, env: Mapping[str, str]
) -> str | None:
    granted = env.get("SLURM_GPUS_ON_NODE", "")
    if environment.launcher == "slurm" and granted.isdecimal():
        is_proof = int(granted) < (environment.local_world_size or 2)
        return f"Slurm granted {granted} (SLURM_GPUS_ON_NODE)" if is_proof else None
    variable = row.visible_devices_variable
    if variable is None or any(env.get(name) for name in row.other_variables):
        return None
    if not env.get(variable):
        return f"{variable} is not set, so each sees the same one"
    if environment.launcher == "pytorch" and env[variable] == "0":
        # torchrun passes its own variables on; a script that binds gives 0 to local rank 0 only.
        return f"{variable} is 0 for all of them"
    return None
