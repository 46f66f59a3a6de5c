"""Describe the group that exists, whoever created it."""

import os

import torch.distributed as dist

from mm_dist._devices import accelerator_rows, count_devices, find_accelerator_of, local_device
from mm_dist._errors import LaunchError
from mm_dist._launchers._environment import LaunchEnvironment
from mm_dist._launchers._selection import detect_launcher
from mm_dist._process_group._timeouts import read_group_timeout
from mm_dist._state import DistInfo, find_own_group

# The group exists: where its ranks met does not matter any more.
_ANY_ADDRESS = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


def current_info() -> DistInfo:
    """Describe the group that exists; it need not have been created by ``init_dist``."""
    own = find_own_group()
    if own is not None:
        return own.info
    rank, world_size = dist.get_rank(), dist.get_world_size()
    environment = current_environment()
    local_rank = rank if environment is None else environment.local_rank
    backend = str(dist.get_backend())
    owner = find_accelerator_of(backend)
    if ":" in backend:
        # Of one backend for each device, as cpu:gloo,cuda:nccl, the accelerator that is there.
        names = {pair.partition(":")[0] for pair in backend.split(",")}
        rows = (row for row in accelerator_rows() if row.name in names)
        owner = next((row for row in rows if count_devices(row)), None)
    return DistInfo(
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        local_world_size=world_size if environment is None else environment.local_world_size,
        launcher=detect_launcher(os.environ).name,
        backend=backend,
        device=local_device(local_rank, owner.name if owner else "cpu"),
        timeout=read_group_timeout(dist.group.WORLD),
    )


def current_environment() -> LaunchEnvironment | None:
    """Return what the launcher says, unless the group has other ranks than it started."""
    own = find_own_group()
    if own is not None:
        return own.environment
    env = {**os.environ, **_ANY_ADDRESS}
    try:
        environment = detect_launcher(os.environ).read(env)
    except LaunchError:
        return None
    place = (dist.get_rank(), dist.get_world_size())
    return environment if (environment.rank, environment.world_size) == place else None
