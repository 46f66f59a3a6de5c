"""The environment variables that torch reads, set while the group lives."""

import os
from collections.abc import Mapping

from mm_dist._launchers._environment import LaunchEnvironment


def set_variables(environment: LaunchEnvironment, more: Mapping[str, str]) -> dict[str, str | None]:
    """Set what torch's ``env://`` rendezvous reads; return the former values of what changed."""
    wanted = {
        **more,
        "MASTER_ADDR": str(environment.master_addr),
        "MASTER_PORT": str(environment.master_port),
        "RANK": str(environment.rank),
        "LOCAL_RANK": str(environment.local_rank),
        "WORLD_SIZE": str(environment.world_size),
    }
    replaced = {key: os.environ.get(key) for key in wanted if os.environ.get(key) != wanted[key]}
    os.environ.update(wanted)
    return replaced


def restore_variables(replaced: Mapping[str, str | None]) -> None:
    """Give environment variables their former values; ``None`` means that there was none."""
    for name, value in replaced.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
