"""Check the arguments of ``init_dist``, and read a process's place from them."""

import math
import re
from collections.abc import Mapping
from datetime import timedelta

from mm_dist._backends import check_backend
from mm_dist._devices import find_row
from mm_dist._errors import ArgumentTypeError, ConfigError, LaunchError
from mm_dist._launchers._selection import check_launcher


def check_dist_arguments(
    launcher: str = "auto",
    backend: str | None = None,
    *,
    timeout: float | timedelta | None = None,
    steady_timeout: float | timedelta | None = None,
    port: int | None = None,
    init_backend: str = "torch",
    device_type: str | None = None,
    hang_report: bool | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    init_method: str | None = None,
) -> None:
    """Refuse what ``init_dist`` refuses on every machine and under every launcher.

    For programs that check a configuration before they start anything. The arguments are those of
    ``init_dist``.

    Raises:
        ArgumentTypeError: If an argument is of a kind that cannot be used.
        ConfigError: If the value of an argument cannot be used.
        TorchVersionError: If this torch lacks what an argument needs.
    """
    check_launcher(launcher)
    if init_backend != "torch":
        raise ConfigError(
            f"init_backend={init_backend!r} is not supported; only 'torch' is. Let the other "
            "library create its group first: init_dist then uses that."
        )
    if port is not None and (type(port) is not int or not 0 < port < 2**16):
        raise ConfigError(f"port={port!r} is no port; it must be an int between 1 and 65535.")
    if (rank, world_size, init_method) != (None, None, None):
        _check_place(launcher, rank, world_size, init_method)
    first, steady = read_timeout(timeout), read_timeout(steady_timeout, "steady_timeout")
    if steady is not None and first is not None and steady > first:
        raise ConfigError(
            f"steady_timeout={steady} is longer than timeout={first}; it is for the steps after "
            "the first one, which is slower. Swap them, or leave steady_timeout out."
        )
    if backend is not None:
        check_backend(backend)
    if device_type is not None:
        find_row(device_type)
    if hang_report is not None and not isinstance(hang_report, bool):
        raise ArgumentTypeError(f"hang_report={hang_report!r}: True, False or None is needed.")


def read_timeout(timeout: float | timedelta | None, name: str = "timeout") -> timedelta | None:
    """Return a timeout as ``timedelta``; numbers are seconds, ``None`` is torch's default."""
    if timeout is None:
        return None
    if isinstance(timeout, timedelta):
        seconds = timeout.total_seconds()
    elif isinstance(timeout, (int, float)) and not isinstance(timeout, bool):
        seconds = float(timeout)
    else:
        raise ArgumentTypeError(f"{name}={timeout!r} is no time; give seconds or a timedelta.")
    # From 2**31 seconds on, torch's own milliseconds or gloo's overflow.
    if not math.isfinite(seconds) or not 0 < seconds < 2**31:
        raise ConfigError(f"{name}={timeout!r} must be more than 0 seconds, and finite.")
    return timedelta(seconds=seconds)


def _check_place(
    launcher: str, rank: int | None, world_size: int | None, init_method: str | None
) -> None:
    """Refuse arguments that name no place among several processes."""
    address = _read_address(init_method)
    for name, value in (("rank", rank), ("world_size", world_size)):
        if value is not None and type(value) is not int:
            raise ArgumentTypeError(f"{name}={value!r} is no number; give an int.")
    if rank is None or world_size is None:
        if rank is not world_size or address is not None:
            raise ConfigError(
                f"rank={rank}, world_size={world_size}, init_method={init_method!r}: give rank and "
                "world_size, or none of these and start the script through a launcher."
            )
    elif not 0 <= rank < world_size:
        raise ConfigError(f"rank={rank} must be at least 0, and below world_size={world_size}.")
    elif launcher not in ("auto", "pytorch"):
        raise ConfigError(
            f"rank={rank} was given, but launcher={launcher!r} numbers its processes itself; "
            "leave one of the two out."
        )


def place_variables(
    rank: int, world_size: int | None, init_method: str | None, env: Mapping[str, str]
) -> dict[str, str]:
    """Return torchrun's variables for the place that a script gives its own process."""
    given = _read_address(init_method)
    host, port = given or (env.get("MASTER_ADDR"), env.get("MASTER_PORT"))
    if not host or not port:
        raise LaunchError(
            f"rank={rank} and world_size={world_size} do not say where rank 0 is; give "
            "init_method='tcp://127.0.0.1:PORT' too, or set MASTER_ADDR and MASTER_PORT."
        )
    numbers = {"RANK": str(rank), "WORLD_SIZE": str(world_size)}
    if host in ("localhost", "::1") or host.startswith("127."):
        numbers |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world_size)}
    elif not env.get("LOCAL_RANK"):
        raise LaunchError(
            f"rank={rank} does not say which process of its machine this is, where rank 0 is "
            f"at {host}. Set LOCAL_RANK in os.environ; on one machine use 127.0.0.1."
        )
    return {**numbers, "MASTER_ADDR": host, "MASTER_PORT": port}


def _read_address(init_method: str | None) -> tuple[str, str] | None:
    """Return host and port of ``tcp://``; ``None`` where variables name them."""
    if init_method is None or init_method == "env://":
        return None
    match = re.fullmatch(r"tcp://(?:\[(.+)\]|([^:/?]+)):(\d+)/?", str(init_method))
    if match is None:
        raise ConfigError(
            f"init_method={init_method!r} cannot be used; give 'tcp://HOST:PORT' or 'env://'. For "
            "another one let torch.distributed.init_process_group create the group first: "
            "init_dist then uses it."
        )
    return match[1] or match[2], match[3]
