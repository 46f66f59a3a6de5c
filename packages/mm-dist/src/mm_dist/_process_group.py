"""Create the process group of this process, and end it."""

import atexit
import gc
import inspect
import logging
import os
import sys
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from mm_dist._backends import choose_backend
from mm_dist._device_choice import local_device, set_current_device
from mm_dist._devices import accelerator_rows, count_devices, find_accelerator_of
from mm_dist._dist_info import DistInfo
from mm_dist._errors import ConfigError, LaunchError
from mm_dist._launchers import LaunchEnvironment, detect_launcher, select_launcher
from mm_dist._rendezvous import (
    check_port,
    overlay_port,
    restore_variables,
    set_variables,
    warn_of_unused_port,
)
from mm_dist._timeout import read_timeout

_logger = logging.getLogger(__name__)
_THREAD_GRACE_S = 0.05


@dataclass(frozen=True)
class _OwnGroup:
    """The group that ``init_dist`` created, and the variables it replaced."""

    group: Any
    info: DistInfo
    replaced: Mapping[str, str | None]


# torch keeps one default group per process; this is what we know about it beyond torch.
_own_groups: list[_OwnGroup] = []


def is_distributed() -> bool:
    """Return whether this process belongs to a process group.

    Example:
        >>> is_distributed()
        False
    """
    return dist.is_available() and dist.is_initialized()


def init_dist(
    launcher: str = "auto",
    backend: str | None = None,
    *,
    timeout: float | timedelta | None = None,
    port: int | None = None,
    init_backend: str = "torch",
    device_type: str | None = None,
) -> DistInfo:
    """Join the process group of all the processes that a launcher started.

    Under ``launcher='none'``, or ``'auto'`` without a launcher, no group is created and the
    result describes a single process. If a group exists already, it is described and left as it
    is. The group is destroyed at a clean exit of the interpreter, or by ``destroy_dist``.

    Args:
        launcher: ``auto``, ``none``, ``pytorch``, ``slurm``, ``mpi``, or the name of an installed
            launcher. ``auto`` finds out from the environment.
        backend: ``nccl``, ``gloo``, ..., or pairs as ``cpu:gloo,cuda:nccl``. Defaults to that of
            the device. One that cannot run here is replaced by that default, with a warning.
        timeout: Longest time that a collective may take, in seconds or as ``timedelta``.
        port: Port on which rank 0 listens. Defaults to ``MASTER_PORT``, then to the launcher's.
        init_backend: Only ``torch``.
        device_type: ``cuda``, ``npu``, ``cpu``, ... Defaults to the accelerator that is there.

    Returns:
        Ranks, sizes, backend and device of this process.

    Raises:
        ConfigError: If an argument cannot be used.
        LaunchError: If the environment does not fit the launcher, or the group does not come up.

    Example:
        >>> init_dist("none", device_type="cpu").world_size
        1
    """
    _check_init_backend(init_backend)
    check_port(port)
    limit = read_timeout(timeout)
    chosen = select_launcher(launcher, os.environ)
    if is_distributed():
        return current_info()
    environment = chosen.read(overlay_port(chosen.name, port))
    warn_of_unused_port(environment, port)
    device = local_device(environment.local_rank, device_type)
    is_single = environment.master_addr is None
    if not is_single and device.type == "mps":
        # No process group of torch carries its tensors.
        if environment.local_rank == 0:
            warnings.warn(
                "Several processes were started; Apple's mps takes part in no process group, so "
                "they use the CPU. Start one process to use mps.",
                stacklevel=2,
            )
        device = torch.device("cpu")
    # One process per machine speaks: the answer is the same for the others.
    is_warning = not is_single and environment.local_rank == 0
    usable = choose_backend(backend, device.type, is_warning=is_warning)
    if is_single:
        return _describe(environment, None, device)
    return _create_group(_describe(environment, usable, device), environment, limit)


def destroy_dist() -> None:
    """Destroy the process group that ``init_dist`` created; calling it again does nothing.

    A group that something else created is left alone. Environment variables that ``init_dist``
    set get their former values back.
    """
    atexit.unregister(_destroy_at_exit)
    while _own_groups:
        own = _own_groups.pop()
        if is_distributed() and dist.group.WORLD is own.group:
            _release_threads(own.info.backend)
            dist.destroy_process_group()
        restore_variables(own.replaced)


def current_info() -> DistInfo:
    """Describe the group that exists; it need not have been created by ``init_dist``.

    Where nothing says otherwise, all processes are taken to be on one machine.
    """
    if _own_groups and dist.group.WORLD is _own_groups[-1].group:
        return _own_groups[-1].info
    rank, world_size = dist.get_rank(), dist.get_world_size()
    environment = detect_launcher(os.environ).read(os.environ)
    is_of_launcher = (environment.rank, environment.world_size) == (rank, world_size)
    local_rank = environment.local_rank if is_of_launcher else rank
    return DistInfo(
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        local_world_size=environment.local_world_size if is_of_launcher else world_size,
        launcher=environment.launcher,
        backend=str(dist.get_backend()),
        device=_device_of_group(local_rank),
    )


def _device_of_group(local_rank: int) -> torch.device:
    text = str(dist.get_backend())
    if ":" in text:
        # One backend for each device, as cpu:gloo,cuda:nccl: the accelerator that is there counts.
        names = {pair.partition(":")[0] for pair in text.split(",")}
        found = [row.name for row in accelerator_rows() if row.name in names and count_devices(row)]
        return local_device(local_rank, found[0] if found else "cpu")
    owner = find_accelerator_of(text)
    return local_device(local_rank, owner.name if owner else "cpu")


def _check_init_backend(init_backend: str) -> None:
    if init_backend != "torch":
        raise ConfigError(
            f"init_backend={init_backend!r} is not supported; only 'torch' is. Let the other "
            "library create its group first: init_dist then uses that."
        )


def _describe(
    environment: LaunchEnvironment, backend: str | None, device: torch.device
) -> DistInfo:
    return DistInfo(
        rank=environment.rank,
        world_size=environment.world_size,
        local_rank=environment.local_rank,
        local_world_size=environment.local_world_size,
        launcher=environment.launcher,
        backend=backend,
        device=device,
    )


def _create_group(
    info: DistInfo, environment: LaunchEnvironment, timeout: timedelta | None
) -> DistInfo:
    _logger.debug("joining %s, read from %s", info, dict(environment.sources))
    if not dist.is_available():
        raise LaunchError(
            f"launcher={info.launcher!r} needs torch.distributed, which this torch was built "
            "without; install another build, or use launcher='none'."
        )
    set_current_device(info.device)
    replaced = set_variables(environment)
    try:
        dist.init_process_group(**_group_arguments(info, timeout))
    except (RuntimeError, ValueError) as error:
        restore_variables(replaced)
        raise LaunchError(
            f"Rank {info.rank} of {info.world_size} could not join the process group at "
            f"{environment.master_addr}:{environment.master_port} with backend {info.backend!r}: "
            f"{error} - check that rank 0 runs there, that the port is free on its machine "
            "(choose another one with port= or MASTER_PORT), and that all ranks were started."
        ) from error
    _own_groups.append(_OwnGroup(dist.group.WORLD, info, replaced))
    atexit.register(_destroy_at_exit)
    return info


def _group_arguments(info: DistInfo, timeout: timedelta | None) -> dict[str, Any]:
    # Rank and size are given, so that a stale RANK of some other tool cannot win.
    arguments: dict[str, Any] = {
        "backend": info.backend,
        "init_method": "env://",
        "rank": info.rank,
        "world_size": info.world_size,
    }
    if timeout is not None:
        arguments["timeout"] = timeout
    is_own_backend = info.backend is not None and find_accelerator_of(info.backend) is not None
    if is_own_backend and "device_id" in inspect.signature(dist.init_process_group).parameters:
        # Without it NCCL guesses the device of barriers, and warns.
        arguments["device_id"] = info.device
    return arguments


def _release_threads(backend: str | None) -> None:
    """Let gloo's threads finish, as far as they can.

    After a collective they release objects of Python, for which they need the interpreter. While
    torch 2.6 destroys the group, it waits for them and holds the interpreter: a deadlock. Once the
    interpreter is gone, torch aborts the process. Both happen seldom, and after all the work is
    done; an idle moment before the end prevents them.
    """
    if backend is None or "gloo" not in backend:
        return
    # A wrapper that lies in a reference cycle keeps the group; its end joins the threads.
    gc.collect()
    time.sleep(_THREAD_GRACE_S)


def _destroy_at_exit() -> None:
    # After an error the other ranks may be inside a collective: waiting for them could hang.
    if getattr(sys, "last_value", None) is None:
        destroy_dist()
