"""Where the processes meet: the port, and the variables of torch's ``env://`` rendezvous."""

import os
import warnings
from collections.abc import Mapping
from urllib.parse import urlsplit

from mm_dist._errors import ArgumentTypeError, ConfigError, LaunchError
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
    """Return the environment for a launcher to read, with the ``port`` that was asked for."""
    # torchrun has opened its port already, for the processes to find each other.
    if port is None or launcher == "pytorch":
        return env
    return {**env, "MASTER_PORT": str(port)}


def check_place(
    launcher: str, rank: int | None, world_size: int | None, init_method: str | None
) -> None:
    """Refuse arguments that name no place among several processes.

    Raises:
        ArgumentTypeError: If a number is no ``int``.
        ConfigError: If they do not fit together, or ``init_method`` is neither TCP nor ``env://``.
    """
    _read_address(init_method)
    for name, value in (("rank", rank), ("world_size", world_size)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise ArgumentTypeError(f"{name}={value!r} is no number; give an int.")
    if rank is None or world_size is None:
        if rank is not world_size:
            raise ConfigError(f"rank={rank}, world_size={world_size}: give both, or neither.")
        return
    if not 0 <= rank < world_size:
        raise ConfigError(f"rank={rank} must be at least 0, and below world_size={world_size}.")
    if launcher not in ("auto", "pytorch"):
        raise ConfigError(
            f"rank={rank} was given, but launcher={launcher!r} numbers its processes itself; "
            "leave one of the two out."
        )


def overlay_place(
    env: Mapping[str, str],
    rank: int | None,
    world_size: int | None,
    init_method: str | None,
    port: int | None,
) -> Mapping[str, str]:
    """Return the environment for a launcher to read, with the place that the script gave.

    Raises:
        LaunchError: If that does not say where rank 0 is, or the number on this machine.
    """
    host, address_port = _read_address(init_method) or (
        env.get("MASTER_ADDR"),
        env.get("MASTER_PORT"),
    )
    place = {"MASTER_ADDR": host, "MASTER_PORT": address_port}
    if rank is not None:
        place |= {"RANK": str(rank), "WORLD_SIZE": str(world_size)}
        place["MASTER_PORT"] = address_port = str(port) if port else address_port
        if not host or not address_port:
            raise LaunchError(
                f"rank={rank} and world_size={world_size} do not say where rank 0 is; give "
                "init_method='tcp://127.0.0.1:PORT' too, or set MASTER_ADDR and MASTER_PORT."
            )
        if host == "localhost" or host.startswith("127.") or host == "::1":
            place |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world_size)}
        elif not env.get("LOCAL_RANK"):
            raise LaunchError(
                f"rank={rank} does not say which process of its machine this is, where rank 0 is "
                f"at {host}. Set LOCAL_RANK in os.environ; on one machine use 127.0.0.1."
            )
    return {**env, **{name: value for name, value in place.items() if value}}


def _read_address(init_method: str | None) -> tuple[str, str] | None:
    """Return host and port of ``tcp://``; ``None`` where variables name them."""
    if init_method is None or init_method == "env://":
        return None
    try:
        parts = urlsplit(str(init_method))
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port or parts.scheme != "tcp" or parts.query:
        raise ConfigError(
            f"init_method={init_method!r} cannot be used; give 'tcp://HOST:PORT' or 'env://'. For "
            "another one let torch.distributed.init_process_group create the group first: "
            "init_dist then uses it."
        )
    return host, str(port)


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


def libuv_variables(platform: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to set before torch opens its store on this platform.

    Newer versions of torch ask for libuv by default; their builds for Windows lack it, and fail.

    Args:
        platform: ``sys.platform``.
        env: The environment; what the user chose there stays.

    Example:
        >>> libuv_variables("win32", {})
        {'USE_LIBUV': '0'}
    """
    return {"USE_LIBUV": "0"} if platform == "win32" and not env.get("USE_LIBUV") else {}
