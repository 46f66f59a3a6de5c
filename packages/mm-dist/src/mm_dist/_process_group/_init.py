"""``init_dist``: from what the launcher says to a group of all ranks."""

import multiprocessing
import os
from collections.abc import Mapping
from datetime import timedelta

import torch

from mm_dist._backends import choose_backend
from mm_dist._devices import local_device
from mm_dist._errors import LaunchError
from mm_dist._launchers._environment import LaunchEnvironment
from mm_dist._launchers._misuse import describe_misuse
from mm_dist._launchers._selection import select_launcher
from mm_dist._message import warn_caller
from mm_dist._open_files import provide_files
from mm_dist._process_group._arguments import check_dist_arguments, place_variables, read_timeout
from mm_dist._process_group._current import current_info
from mm_dist._process_group._ending import destroy_dist
from mm_dist._process_group._timeouts import check_timeout_can_change
from mm_dist._rendezvous._interface import interface_variables
from mm_dist._state import (
    DEBUG_VARIABLE,
    HANG_REPORT_VARIABLE,
    DistInfo,
    is_distributed,
    read_switch,
)


def init_dist(
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
) -> DistInfo:
    """Join the process group of all the processes that a launcher started.

    Under ``launcher='none'``, or ``'auto'`` without a launcher, no group is created and the
    result describes a single process. If a group exists already, it is described and left as it
    is. The group is destroyed at a clean exit of the interpreter, or by ``destroy_dist``.

    While the group lives, an uncaught exception is recorded for the other ranks and the launcher
    (as torch's ``record`` does), and its last line names this rank.

    Args:
        launcher: ``auto``, ``none``, ``pytorch``, ``slurm``, ``mpi``, or the name of an
            installed launcher. ``auto`` finds out from the environment.
        backend: ``nccl``, ``gloo``, ..., or pairs as ``cpu:gloo,cuda:nccl``. Defaults to that of
            the device. One that cannot run here is replaced by that default, with a warning.
        timeout: Longest time that a collective may take, in seconds or as ``timedelta``; also how
            long ranks wait for each other here. Defaults to torch's. ``DistInfo.timeout`` is what
            torch says that it is.
        steady_timeout: A shorter one that ``enter_steady_state`` sets, after the first step.
            Needs torch 2.9 with gloo, 2.4 with NCCL.
        port: Port on which rank 0 listens. Defaults to ``MASTER_PORT``, then to the launcher's.
        init_backend: Only ``torch``.
        device_type: ``cuda``, ``npu``, ``cpu``, ... Defaults to the accelerator that is there.
        hang_report: Whether to say which rank the others wait for, before a collective times
            out. ``None`` means yes, unless ``MM_DIST_HANG_REPORT=0`` is set; the same on all ranks.
            A single process, and a group that something else created, have none.
        rank: Number of this process, where the script starts its processes itself, as with
            ``torch.multiprocessing.spawn``. Together with ``world_size`` only.
        world_size: How many processes there are.
        init_method: ``tcp://HOST:PORT`` of rank 0, or ``env://`` for ``MASTER_ADDR`` and
            ``MASTER_PORT``. Unless it is 127.0.0.1, ``LOCAL_RANK`` has to be set.

    Returns:
        Ranks, sizes, backend, device and timeout of this process.

    Raises:
        ArgumentTypeError: If an argument is of a kind that cannot be used.
        ConfigError: If the value of an argument cannot be used.
        LaunchError: If the environment does not fit the launcher, the ranks ask for different
            groups, or the group does not come up.
        TorchVersionError: If this torch lacks what an argument needs.

    Example:
        >>> init_dist("none", device_type="cpu").world_size
        1
    """
    has_group = is_distributed()  # which may be of a kind that is not known here
    check_dist_arguments(
        launcher,
        None if has_group else backend,
        timeout=timeout,
        steady_timeout=steady_timeout,
        port=port,
        init_backend=init_backend,
        device_type=None if has_group else device_type,
        hang_report=hang_report,
        rank=rank,
        world_size=world_size,
        init_method=init_method,
    )
    if has_group:
        # Whatever variables are left over: the group that exists wins.
        existing = current_info()
        if read_timeout(timeout) not in (None, existing.timeout):
            warn_caller(f"timeout={timeout} is not used: the group that exists has another one.")
        return existing
    # Somebody may have ended the former group without a word to us.
    destroy_dist()
    env = dict(os.environ)
    if rank is not None:
        launcher = "pytorch"
        env |= place_variables(rank, world_size, init_method, env)
    chosen = select_launcher(launcher, env)
    # torchrun has opened its port already, for the processes to find each other.
    if port is not None and (rank is not None or chosen.name != "pytorch"):
        env["MASTER_PORT"] = str(port)
    environment = chosen.read(env)
    device = local_device(environment.local_rank, device_type)
    is_single = environment.master_addr is None
    if environment.local_rank == 0:  # one process per machine speaks
        _warn_about_arguments(launcher, environment, env, port, device)
    if is_single:
        usable = None
    else:
        _refuse_import_by_child()
        if device.type == "mps":
            device = torch.device("cpu")
        usable = choose_backend(backend, device.type, is_warning=environment.local_rank == 0)
    info = DistInfo(
        rank=environment.rank,
        world_size=environment.world_size,
        local_rank=environment.local_rank,
        local_world_size=environment.local_world_size,
        launcher=environment.launcher,
        backend=usable,
        device=device,
    )
    if usable is None:
        return info
    is_wanted = read_switch(env, HANG_REPORT_VARIABLE, default=True)
    is_watched = is_wanted if hang_report is None else hang_report
    limits = read_timeout(timeout), read_timeout(steady_timeout)
    return _join(info, environment, *limits, is_watched=is_watched)


def _join(
    info: DistInfo,
    environment: LaunchEnvironment,
    limit: timedelta | None,
    steady_limit: timedelta | None,
    *,
    is_watched: bool,
) -> DistInfo:
    """Join the group of all ranks, and start the hang report."""
    backend, env = str(info.backend), os.environ
    provide_files(info.world_size)
    if steady_limit is not None:
        check_timeout_can_change(backend)
    variables = interface_variables(environment, env)
    if "nccl" in backend and torch.__version__.startswith("1."):
        # Without it torch 1.x keeps to no timeout; torchrun sets it, srun and mpirun do not.
        variables["NCCL_ASYNC_ERROR_HANDLING"] = env.get("NCCL_ASYNC_ERROR_HANDLING", "1")
    # What would make ranks wait for each other for ever if some had chosen otherwise.
    settings = {
        "backend": backend,
        "steady_timeout": str(steady_limit),
        f"hang_report (or {HANG_REPORT_VARIABLE})": "on" if is_watched else "off",
        DEBUG_VARIABLE: "on" if read_switch(env, DEBUG_VARIABLE, default=False) else "off",
    }
    from mm_dist._process_group._joining import join_group  # noqa: PLC0415 (only for a group)

    own = join_group(info, environment, limit, variables, settings)
    own.steady_timeout = steady_limit
    if is_watched and own.info.timeout is not None:
        from mm_dist.diagnose._hang_report import start_hang_report  # noqa: PLC0415 (only if on)

        own.hang_report = start_hang_report(own.info, own.info.timeout)
    return own.info


def _warn_about_arguments(
    launcher: str,
    environment: LaunchEnvironment,
    env: Mapping[str, str],
    port: int | None,
    device: torch.device,
) -> None:
    misuse = describe_misuse(launcher, environment, env)
    if misuse is not None:
        warn_caller(misuse)
    if port is not None and environment.master_port not in (None, port):
        warn_caller(
            f"port={port} is not used: launcher {environment.launcher!r} has opened port "
            f"{environment.master_port} already. Give it to the launcher, as in: "
            f"torchrun --master_port={port} --nproc_per_node=N script.py"
        )
    if device.type == "mps" and environment.master_addr is not None:
        warn_caller(
            "Several processes were started; Apple's mps takes part in no process group, so they "
            "use the CPU. Start one process to use mps."
        )


def _refuse_import_by_child() -> None:
    # A child that does not fork imports the script, and would come as a second process of our rank.
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise LaunchError(
            "init_dist was called while a child process imports the script; put the script's work "
            "under `if __name__ == '__main__':`."
        )
