"""``mm-dist run``: torch's elastic launcher with defaults, and the first failure named last."""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from mm_dist._command import _worker
from mm_dist._command._output import write_error
from mm_dist._command._run_failure import (
    PREEMPTED_STATUS,
    describe_failures,
    find_failures,
    is_any_preempted,
)
from mm_dist._command._run_options import count_cores, read_nodes, read_run_options
from mm_dist._errors import ConfigError, LaunchError
from mm_dist._launchers import libuv_variables
from mm_dist._process_group._open_files import provide_files
from mm_dist._process_group._store import PORT_IS_TAKEN

_FIRST_SIGNAL_STATUS = 128
# How long the store survives a failure, for the other machines to read that the run is over.
_STORE_GRACE_S = 1.0


def run_script(arguments: Sequence[str]) -> int:
    """Start a script on every device of this machine, and wait for its end.

    Args:
        arguments: What follows ``mm-dist run``.

    Returns:
        The exit status of the rank that failed first (128 + N after signal N), or 0.

    Raises:
        ConfigError: If an option cannot be used.
        LaunchError: If the machines do not meet.
        TorchVersionError: If torch is too old for an option.
        SystemExit: Of argparse, on ``--help`` and bad usage.
    """
    options = read_run_options(arguments)
    with tempfile.TemporaryDirectory(prefix="mm_dist_run_") as scratch:
        # torch would leave its own folder behind for every run.
        folder = Path(options.log_dir) / "elastic" if options.log_dir else Path(scratch)
        _start_through_worker(options)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"--log-dir={folder.parent} cannot be written: {error}; give another folder."
            ) from error
        options.log_dir = str(folder)
        _set_variables(options)
        return _launch(options, folder)


def _start_through_worker(options: argparse.Namespace) -> None:
    """Start each rank through ``_worker``, which records how it fails and names its log."""
    if options.module and options.no_python:
        raise ConfigError("--module and --no-python exclude each other; leave out one of them.")
    is_log_kept = options.log_dir and options.tee == options.redirects == "0"
    if options.run_path:
        # torch starts it by itself, and records failures.
        options.tee = "3" if is_log_kept else options.tee
        return
    # Only stdout goes through torch: the worker joins stderr to it, which keeps the order.
    options.tee = "1" if is_log_kept else options.tee
    mode = "module" if options.module else "program" if options.no_python else "script"
    if mode == "script" and not Path(options.training_script).exists():
        raise ConfigError(
            f"There is no script {options.training_script!r} in {Path.cwd()}; for a module write "
            "-m MODULE, for another program --no-python PROGRAM."
        )
    log_dir = str(Path(options.log_dir).absolute()) if is_log_kept else ""
    worker_arguments = [log_dir, mode, options.training_script]
    options.training_script_args = [*worker_arguments, *options.training_script_args]
    options.training_script = _worker.__file__
    options.module = options.no_python = False


def _set_variables(options: argparse.Namespace) -> None:
    num_processes, num_nodes = int(options.nproc_per_node), read_nodes(options.nnodes)[1]
    os.environ.update(libuv_variables(sys.platform, os.environ))
    # torchrun gives every rank one thread, and warns.
    if num_processes > 1:
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, count_cores() // num_processes)))
    os.environ.setdefault("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "[rank ${rank}] ")
    # The launcher keeps the store, to which every rank connects.
    provide_files(num_nodes * num_processes)
    if num_nodes > 1:
        # Newer torch shares the launchers' store with the ranks; a launcher that joins later would
        # wait for a key that nobody sets again.
        os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")


def _launch(options: argparse.Namespace, folder: Path) -> int:
    from torch.distributed.elastic.multiprocessing.api import SignalException  # noqa: PLC0415
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415
    from torch.distributed.elastic.rendezvous import RendezvousError  # noqa: PLC0415
    from torch.distributed.launcher.api import elastic_launch  # noqa: PLC0415 (slow)
    from torch.distributed.run import config_from_args  # noqa: PLC0415 (slow)

    known = set(folder.iterdir())
    try:
        config, command, arguments = config_from_args(options)
    except (ValueError, AssertionError, NotADirectoryError) as error:
        raise ConfigError(f"torch's launcher refuses the options: {error}") from error
    try:
        elastic_launch(config=config, entrypoint=command)(*arguments)
    except ChildFailedError as error:
        failures = find_failures(error.failures, _find_last_attempt(folder, known))
        write_error(describe_failures(failures))
        if read_nodes(options.nnodes)[1] > 1:
            time.sleep(_STORE_GRACE_S)
        return failures[0].status
    except SignalException as error:
        number = int(error.sigval)
        if is_any_preempted(_find_last_attempt(folder, known)):
            write_error(f"mm-dist run: ended by signal {number}; the ranks ask to be started again")
            return PREEMPTED_STATUS
        write_error(f"mm-dist run: ended by signal {number}, and so were its ranks")
        return _FIRST_SIGNAL_STATUS + number
    except (RendezvousError, RuntimeError, TimeoutError, OSError) as error:
        raise LaunchError(_describe_meeting(options, error)) from error
    return 0


def _find_last_attempt(folder: Path, known: set[Path]) -> Path | None:
    """Return the folder that torch made for the last attempt of this run."""
    attempts = [a for run in set(folder.iterdir()) - known for a in run.glob("attempt_*")]
    return max(attempts, key=lambda path: int(path.name.rpartition("_")[2]), default=None)


def _describe_meeting(options: argparse.Namespace, error: Exception) -> str:
    where = options.rdzv_endpoint or f"{options.master_addr}:{options.master_port}"
    cause = f" ({error.__cause__})" if error.__cause__ is not None else ""
    if any(words in f"{error}{cause}".lower() for words in PORT_IS_TAKEN):
        return (
            f"The launcher cannot listen at {where}: another program uses that port. Give another "
            "one, the same on all machines; on one machine leave the port out, and a free one is "
            "chosen."
        )
    return (
        f"The launchers could not meet at {where} ({options.rdzv_backend}): "
        f"{type(error).__name__}: {error}{cause} - check that the first machine's launcher runs "
        "there, that its port is free, and that every machine was given the same address."
    )
