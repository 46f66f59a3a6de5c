"""Where the processes meet: the port, and the variables of torch's ``env://`` rendezvous."""

import os
import warnings
from collections.abc import Mapping

from mm_dist._errors import ConfigError
from mm_dist._launchers import LaunchEnvironment


def check_port(port: int | None) -> None:
    """Refuse what is no port number.

    Raises:
        ConfigError: If it is not an ``int`` between 1 and 65535.
    """
    if port is None:
        return
    if not isinstance(port, int) or isinstance(port, bool) or not 0 < port < 2**16:
        raise ConfigError(f"port={port!r} is no port; it must be an int between 1 and 65535.")


def overlay_port(env: Mapping[str, str], launcher: str, port: int | None) -> Mapping[str, str]:
    """Return the environment that a launcher shall read when ``port`` was asked for."""
    # torchrun has opened its port already, for the processes to find each other.
    if port is None or launcher == "pytorch":
        return env
    return {**env, "MASTER_PORT": str(port)}


def warn_of_unused_port(environment: LaunchEnvironment, port: int | None) -> None:
    """Say, once per machine, that the launcher's port is used and not the one asked for."""
    if port is None or environment.master_port in (None, port) or environment.local_rank > 0:
        return
    warnings.warn(
        f"port={port} is not used: launcher {environment.launcher!r} has opened port "
        f"{environment.master_port} already. Give it to the launcher, as in: "
        f"torchrun --master_port={port} --nproc_per_node=N script.py",
        UserWarning,
        stacklevel=3,
    )


def set_variables(environment: LaunchEnvironment, more: Mapping[str, str]) -> dict[str, str | None]:
    """Set what torch's ``env://`` rendezvous reads; return the former values of what changed.

    Args:
        environment: This process's place.
        more: Further variables to set.
    """
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
