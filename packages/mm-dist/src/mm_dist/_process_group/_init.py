"""``init_dist``: from what the launcher says to a group of all ranks."""

import multiprocessing
import os
import sys
import warnings
from collections.abc import Mapping
from datetime import timedelta

import torch

from mm_dist._backends import check_backend, choose_backend
from mm_dist._device_choice import local_device
from mm_dist._devices import find_row
from mm_dist._dist_info import DistInfo
from mm_dist._errors import ArgumentTypeError, ConfigError, LaunchError
from mm_dist._group_timeouts import check_timeout_can_change
from mm_dist._launchers import (
    check_launcher,
    describe_misuse,
    select_launcher,
)
from mm_dist._open_files import provide_files
from mm_dist._process_group._current import current_info
from mm_dist._process_group._ending import destroy_dist
from mm_dist._process_group._joining import join_group
from mm_dist._process_group._steady import steady_switch
from mm_dist._rendezvous._interface import interface_variables
from mm_dist._rendezvous._place import (
    check_place,
    check_port,
    libuv_variables,
    overlay_place,
    overlay_port,
    warn_of_unused_port,
)
from mm_dist._state import OwnGroup, is_distributed
from mm_dist._switches import DEBUG_VARIABLE, HANG_REPORT_VARIABLE, read_switch
from mm_dist._timeout import check_steady_timeout, read_timeout
from mm_dist._warning import warn_caller

_MPS_MESSAGE = (
    "Several processes were started; Apple's mps takes part in no process group, so they use the "
    "CPU. Start one process to use mps."
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
        launcher: ``auto``, ``none``, ``pytorch``, ``slurm``, ``mpi``, or the name of an installed
            launcher. ``auto`` finds out from the environment.
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
    limit, steady_limit = read_timeout(timeout), read_timeout(steady_timeout, "steady_timeout")
    if has_group:
        # Whatever variables are left over: the group that exists wins.
        existing = current_info()
        if limit not in (None, existing.timeout):
            _warn(
                f"timeout={limit} is not used: there is a process group already, and its timeout "
                f"is {existing.timeout}. Give it to what creates the group."
            )
        return existing
    # Somebody may have ended the former group without a word to us.
    destroy_dist()
    env = overlay_place(os.environ, rank, world_size, init_method, port)
    chosen = select_launcher(launcher if rank is None else "pytorch", env)
    environment = chosen.read(overlay_port(env, chosen.name, port))
    is_single = environment.master_addr is None
    if not is_single:
        _refuse_import_by_child()
    elif init_method is not None:
        raise LaunchError(
            f"init_method={init_method!r} was given, but nothing says which process this is. Give "
            "rank= and world_size= too, or start the script through a launcher, as torchrun."
        )
    warn_of_unused_port(environment, port)
    speaks = environment.local_rank == 0
    _warn(describe_misuse(launcher, environment, env) if speaks else None)
    device = local_device(environment.local_rank, device_type)
    if device.type == "mps" and not is_single:
        # No process group of torch carries its tensors.
        _warn(_MPS_MESSAGE if speaks else None)
        device = torch.device("cpu")
    # One process per machine speaks: the answer is the same for the others.
    usable = choose_backend(backend, device.type, is_warning=speaks and not is_single)
    info = DistInfo(
        rank=environment.rank,
        world_size=environment.world_size,
        local_rank=environment.local_rank,
        local_world_size=environment.local_world_size,
        launcher=environment.launcher,
        backend=None if is_single else usable,
        device=device,
    )
    if is_single:
        return info
    shortage = provide_files(environment.world_size)
    _warn(shortage if speaks else None)
    if steady_limit is not None:
        check_timeout_can_change(usable)
    is_watched = hang_report
    if is_watched is None:
        is_watched = read_switch(env, HANG_REPORT_VARIABLE, default=True)
    variables = _variables_for_torch(usable, env, is_watched=is_watched)
    variables.update(interface_variables(environment, env))
    is_checked = read_switch(env, DEBUG_VARIABLE, default=False)
    # What would make ranks wait for each other for ever if some had chosen otherwise.
    settings = {
        "backend": usable,
        "steady_timeout": str(steady_limit),
        f"hang_report (or {HANG_REPORT_VARIABLE})": "on" if is_watched else "off",
        DEBUG_VARIABLE: "on" if is_checked else "off",
    }
    own = join_group(info, environment, limit, variables, settings)
    steady_switch.arm(steady_limit)
    if is_watched:
        _start_hang_report(own)
    return own.info


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

    Example:
        >>> check_dist_arguments("slurm", "gloo", timeout=90)
    """
    check_launcher(launcher)
    if init_backend != "torch":
        raise ConfigError(
            f"init_backend={init_backend!r} is not supported; only 'torch' is. Let the other "
            "library create its group first: init_dist then uses that."
        )
    check_port(port)
    check_place(launcher, rank, world_size, init_method)
    check_steady_timeout(read_timeout(steady_timeout, "steady_timeout"), read_timeout(timeout))
    check_backend(backend)
    if device_type is not None:
        find_row(device_type)
    if hang_report is not None and not isinstance(hang_report, bool):
        raise ArgumentTypeError(f"hang_report={hang_report!r}: True, False or None is needed.")


def _warn(message: str | None) -> None:
    """Warn the caller of ``init_dist``, which calls this, if there is something to say."""
    if message is not None:
        warnings.warn(message, UserWarning, stacklevel=3)


def _refuse_import_by_child() -> None:
    # A child that does not fork imports the script, and would come as a second process of our rank.
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise LaunchError(
            "init_dist was called while a child process imports the script; put the script's work "
            "under `if __name__ == '__main__':`."
        )


def _variables_for_torch(
    backend: str, env: Mapping[str, str], *, is_watched: bool
) -> dict[str, str]:
    variables = libuv_variables(sys.platform, env)
    if "nccl" in backend and torch.__version__.startswith("1."):
        # Without it torch 1.x keeps to no timeout; torchrun sets it, srun and mpirun do not.
        variables["NCCL_ASYNC_ERROR_HANDLING"] = env.get("NCCL_ASYNC_ERROR_HANDLING", "1")
    if is_watched:
        from mm_dist.diagnose._hang_report import recorder_variables  # noqa: PLC0415

        variables.update(recorder_variables(backend, env))
    return variables


def _start_hang_report(own: OwnGroup) -> None:
    # Only where it is on.
    from mm_dist.diagnose._hang_report import start_hang_report  # noqa: PLC0415

    if own.info.timeout is None:
        return
    try:
        own.hang_report = start_hang_report(own.info, own.info.timeout)
    except (RuntimeError, OSError) as error:
        warn_caller(f"There will be no hang report: {type(error).__name__}: {error}")
