"""``mm-dist run``: torch's elastic launcher with defaults that work, and the failure said last."""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mm_dist._command import _worker
from mm_dist._command._output import write_error
from mm_dist._command._run_agent import telling_of_restarts
from mm_dist._command._run_arguments import read_run_arguments
from mm_dist._command._run_contact import BACKEND_NAME, Contact, register_rendezvous
from mm_dist._command._run_failure import (
    PREEMPTED_STATUS,
    describe_failures,
    find_failures,
    find_preempted,
)
from mm_dist._command._run_guard import guard_launcher, plan_guard
from mm_dist._command._run_nodes import plan_rendezvous, read_nodes
from mm_dist._command._run_processes import choose_threads, count_processes
from mm_dist._errors import ConfigError, LaunchError
from mm_dist._launchers import libuv_variables
from mm_dist._process_group._open_files import provide_files
from mm_dist._process_group._store import PORT_IS_TAKEN

_FIRST_SIGNAL_STATUS = 128
# So long the store stays after a failure, for the other machines to read that the run is over.
_FAREWELL_S = 1.0


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
    options = read_run_arguments(arguments)
    num_processes = count_processes(options.nproc_per_node)
    options.nproc_per_node = str(num_processes)
    plan_rendezvous(options)
    with tempfile.TemporaryDirectory(prefix="mm_dist_run_") as scratch:
        # torch would leave a folder of its own behind for every run.
        folder = Path(options.log_dir) / "elastic" if options.log_dir else Path(scratch)
        _prepare_worker(options)
        _prepare_folder(folder)
        options.log_dir = str(folder)
        _set_variables(options, num_processes)
        if not _needs_guard(options):
            return _launch_in(folder, options, None)
        return guard_launcher(
            lambda contact: _launch_in(folder, options, contact), plan_guard(options)
        )


def _needs_guard(options: argparse.Namespace) -> bool:
    """Return whether the launcher depends on others all the time, so that it can lose them."""
    is_shared = read_nodes(options.nnodes)[1] > 1 and options.rdzv_backend == "c10d"
    return is_shared and sys.platform.startswith("linux")


def _launch_in(folder: Path, options: argparse.Namespace, contact: Contact | None) -> int:
    known = set(folder.iterdir())
    return _launch(options, lambda: _find_last_attempt(folder, known), contact)


def _set_variables(options: argparse.Namespace, num_processes: int) -> None:
    os.environ.update(libuv_variables(sys.platform, os.environ))
    # torchrun gives every rank one thread, and warns.
    if num_processes > 1:
        os.environ.setdefault("OMP_NUM_THREADS", str(choose_threads(num_processes)))
    os.environ.setdefault("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "[rank ${rank}] ")
    num_nodes = read_nodes(options.nnodes)[1]
    # The launcher keeps the store, which every rank connects to. The ranks say if it is too little.
    provide_files(num_nodes * num_processes)
    if num_nodes > 1:
        # Newer torch shares the launchers' store with the ranks; a launcher that joins later, also
        # one that takes the place of another, then waits for a key that nobody sets again.
        os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")


def _prepare_worker(options: argparse.Namespace) -> None:
    """Start each rank through ``_worker``, which records how it fails and names its log."""
    if options.module and options.no_python:
        raise ConfigError("--module and --no-python exclude each other; leave out one of them.")
    is_log_kept = options.log_dir and options.tee == options.redirects == "0"
    if options.run_path:
        # torch runs it in a process of its own, where it records failures itself.
        options.tee = "3" if is_log_kept else options.tee
        return
    # Only stdout goes through torch: the worker joins stderr to it, so that the order is kept.
    options.tee = "1" if is_log_kept else options.tee
    mode = "module" if options.module else "program" if options.no_python else "script"
    if mode == "script" and not Path(options.training_script).exists():
        raise ConfigError(
            f"There is no script {options.training_script!r} in {Path.cwd()}; for a module write "
            "-m MODULE, for another program --no-python PROGRAM."
        )
    log_dir = str(Path(options.log_dir).absolute()) if is_log_kept else ""
    own_arguments = [log_dir, mode, options.training_script]
    options.training_script_args = [*own_arguments, *options.training_script_args]
    options.training_script = _worker.__file__
    options.module = options.no_python = False


def _prepare_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"--log-dir={folder.parent} cannot be written: {error}; give another folder."
        ) from error


def _find_last_attempt(folder: Path, known: set[Path]) -> Path | None:
    """Return the folder that torch made for the last attempt of this run."""
    attempts = [a for run in set(folder.iterdir()) - known for a in run.glob("attempt_*")]
    return max(attempts, key=lambda path: int(path.name.rpartition("_")[2]), default=None)


def _launch(
    options: argparse.Namespace,
    find_attempt: Callable[[], Path | None],
    contact: Contact | None,
) -> int:
    from torch.distributed.elastic.multiprocessing.api import SignalException  # noqa: PLC0415
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415
    from torch.distributed.elastic.rendezvous import (  # noqa: PLC0415
        RendezvousClosedError,
        RendezvousError,
        RendezvousTimeoutError,
    )

    def tell(failures: Mapping[int, Any], number: int, most: int) -> None:
        write_error(describe_failures(find_failures(failures, find_attempt())))
        write_error(f"mm-dist run: all ranks are started again ({number} of {most})")

    try:
        with telling_of_restarts(tell):
            _run_elastic(options, contact)
    except ChildFailedError as error:
        failures = find_failures(error.failures, find_attempt())
        write_error(describe_failures(failures))
        if contact is not None:
            # The error holds the store, where the other launchers look several times a second.
            time.sleep(_FAREWELL_S)
        return failures[0].status
    except SignalException as error:
        return _end_by_signal(int(error.sigval), find_attempt())
    except (RendezvousError, RuntimeError, TimeoutError, OSError) as error:
        if contact and not isinstance(error, (RendezvousClosedError, RendezvousTimeoutError)):
            contact.say_lost()
        raise LaunchError(_describe_meeting(options, error)) from error
    return 0


def _run_elastic(options: argparse.Namespace, contact: Contact | None) -> None:
    from torch.distributed.launcher.api import elastic_launch  # noqa: PLC0415 (slow)
    from torch.distributed.run import config_from_args  # noqa: PLC0415 (slow)

    try:
        config, command, arguments = config_from_args(options)
    except (ValueError, AssertionError, NotADirectoryError) as error:
        raise ConfigError(f"torch's launcher refuses the options: {error}") from error
    if contact is not None:
        register_rendezvous(contact)
        config.rdzv_backend = BACKEND_NAME
    elastic_launch(config=config, entrypoint=command)(*arguments)


def _end_by_signal(number: int, attempt: Path | None) -> int:
    if find_preempted(attempt):
        write_error(f"mm-dist run: ended by signal {number}; the ranks ask to be started again")
        return PREEMPTED_STATUS
    write_error(f"mm-dist run: ended by signal {number}, and so were its ranks")
    return _FIRST_SIGNAL_STATUS + number


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
