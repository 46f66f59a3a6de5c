"""``mm-dist run``: torch's elastic launcher with defaults, and the first failure named last."""

import argparse
import json
import os
import signal
import socket
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mm_dist._command import _worker
from mm_dist._command._output import print_error
from mm_dist._devices import available_device_type, count_devices, find_row
from mm_dist._errors import ConfigError, LaunchError
from mm_dist._open_files import provide_files
from mm_dist._rendezvous._address import can_host, own_address_towards, resolve
from mm_dist.diagnose._error import is_lost_peer, shorten_error

_PREEMPTED_STATUS, _FIRST_SIGNAL_STATUS = 75, 128
_DEFAULT_PORT = 29500
# How long the store survives a failure, for the other machines to read that the run is over.
_STORE_GRACE_S = 1.0
_SIGNAL_MEANINGS = {
    signal.SIGSEGV: ": crashed in native code",
    signal.SIGABRT: ": aborted by native code, whose message is in its output",
    getattr(signal, "SIGKILL", 9): ": killed, often by the kernel because memory ran out",
    getattr(signal, "SIGBUS", 7): ": often a full /dev/shm; give the container more shared memory",
}


def run_script(arguments: Sequence[str]) -> int:
    """Start a script on every device of this machine, and wait for its end."""
    options = read_run_options(arguments)
    with tempfile.TemporaryDirectory(prefix="mm_dist_run_") as scratch:
        if options.log_dir and options.tee == "0":
            options.tee = "3"
        # torch would leave a folder of its own behind for every run.
        options.log_dir = options.log_dir or scratch
        return _launch(options)


def read_run_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Return torchrun's options, with defaults filled in and the script behind our worker."""
    from torch.distributed.run import get_args_parser  # noqa: PLC0415 (slow)

    parser: argparse.ArgumentParser = get_args_parser()
    parser.prog = "mm-dist run"
    # torch 1.13 knows underscores only, and looks every 5 s whether a rank has failed.
    known = parser._option_string_actions  # noqa: SLF001 (argparse has no public way)
    for spelling, action in list(known.items()):
        known.setdefault(spelling.replace("_", "-"), action)
    if "PET_MONITOR_INTERVAL" not in os.environ:
        parser.set_defaults(monitor_interval=0.1)
    # The variables of Kubernetes' operator are torch's defaults already, and stay.
    for name in ("nproc_per_node", "master_addr", "master_port", "node_rank"):
        if f"PET_{name.upper()}" not in os.environ:
            parser.set_defaults(**{name: None})
    options = parser.parse_args(arguments)
    if options.nproc_per_node is None:
        device_type = available_device_type()
        count = 1 if device_type == "cpu" else count_devices(find_row(device_type))
        options.nproc_per_node = str(count)
    _plan_rendezvous(options)
    if not options.run_path:
        mode = "module" if options.module else "program" if options.no_python else "script"
        given = options.training_script_args
        options.training_script_args = [mode, options.training_script, *given]
        options.training_script = _worker.__file__
        options.module = options.no_python = False
    return options


def _plan_rendezvous(options: argparse.Namespace) -> None:
    """Fill in where the machines meet."""
    least, _, most = options.nnodes.partition(":")
    if not (least.isdecimal() and (most or least).isdecimal()):
        raise ConfigError(f"--nnodes={options.nnodes} is neither a number nor MIN:MAX.")
    host, port = options.master_addr, int(options.master_port or _DEFAULT_PORT)
    if int(most or least) == 1:
        if options.standalone or not (options.rdzv_endpoint or options.master_port):
            # The system chooses a free port, and the name keeps two jobs apart.
            options.rdzv_backend, options.rdzv_endpoint = "c10d", "localhost:0"
            options.rdzv_id, options.standalone = str(uuid.uuid4()), False
            # The machine's name need not resolve.
            options.local_addr = getattr(options, "local_addr", None) or "localhost"
    elif options.rdzv_backend == "static" and not options.rdzv_endpoint:
        if most or (host is None and options.node_rank != 0):
            raise ConfigError(
                f"--nnodes={options.nnodes} needs --master-addr, the address of the first machine, "
                "the same on all; machines that come and go need --rdzv-backend=c10d "
                "and --rdzv-endpoint=FIRST_MACHINE:PORT."
            )
        if options.node_rank is None:
            is_first = can_host(resolve(host, port)[0][0], port)
            if not is_first and int(least) > 2:
                raise ConfigError(
                    f"--nnodes={least} needs --node-rank on all machines but the first: a number "
                    "from 1, different on each."
                )
            options.node_rank = int(not is_first)
    elif options.rdzv_backend == "c10d":
        _plan_c10d(options)
    options.node_rank = options.node_rank or 0
    options.master_addr, options.master_port = host or "127.0.0.1", port


def _plan_c10d(options: argparse.Namespace) -> None:
    first, _, first_port = options.rdzv_endpoint.rpartition(":")
    if not (first and first_port.isdecimal()):
        raise ConfigError(
            f"--nnodes={options.nnodes} with --rdzv-backend=c10d needs "
            "--rdzv-endpoint=HOST:PORT, the address of the first machine, the same on all."
        )
    address, rank = resolve(first, int(first_port))[0][0], options.node_rank
    # torch compares host names, which fails where a machine's name means its loopback address.
    if "is_host" not in options.rdzv_conf:
        is_host = can_host(address, int(first_port)) if rank is None else int(rank) == 0
        options.rdzv_conf = f"{options.rdzv_conf},is_host={int(is_host)}".lstrip(",")
    options.local_addr = getattr(options, "local_addr", None) or own_address_towards(address)
    # torch would warn that this backend does not use it.
    options.node_rank = 0


def _launch(options: argparse.Namespace) -> int:
    from torch.distributed.elastic.multiprocessing.api import SignalException  # noqa: PLC0415
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415
    from torch.distributed.launcher.api import elastic_launch  # noqa: PLC0415 (slow)
    from torch.distributed.run import config_from_args  # noqa: PLC0415 (slow)

    os.environ.setdefault("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "[rank ${rank}] ")
    # Newer torch shares the launchers' store with the ranks; a launcher that joins later would
    # wait for a key that nobody sets again.
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    if options.nproc_per_node.isdecimal() and int(options.nproc_per_node) > 1:
        # torchrun gives every rank one thread, and warns.
        has_affinity = hasattr(os, "sched_getaffinity")
        num_cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
        threads = max(1, num_cores // int(options.nproc_per_node))
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    try:
        config, command, arguments = config_from_args(options)
        provide_files(config.max_nodes * config.nproc_per_node)  # the launcher keeps the store
    except (ValueError, AssertionError, OSError) as error:
        raise ConfigError(f"torch's launcher refuses the options: {error}") from error
    try:
        elastic_launch(config=config, entrypoint=command)(*arguments)
    except ChildFailedError as error:
        status, text = _describe_failures(error.failures)
        print_error(text)
        if config.max_nodes > 1:
            time.sleep(_STORE_GRACE_S)
        return status
    except SignalException as error:
        number = int(error.sigval)
        records = Path(options.log_dir).glob("*/attempt_*/*/error.json")
        if any(_read_record(file).get("errorCode") == _PREEMPTED_STATUS for file in records):
            print_error(f"mm-dist run: ended by signal {number}; the ranks ask to be started again")
            return _PREEMPTED_STATUS
        print_error(f"mm-dist run: ended by signal {number}, and so were its ranks")
        return _FIRST_SIGNAL_STATUS + number
    except (RuntimeError, TimeoutError, OSError) as error:
        where = options.rdzv_endpoint or f"{options.master_addr}:{options.master_port}"
        cause = f" ({error.__cause__})" if error.__cause__ is not None else ""
        raise LaunchError(
            f"The launchers could not meet at {where} ({options.rdzv_backend}): "
            f"{type(error).__name__}: {error}{cause} - check that the first machine's launcher "
            "runs there, that no other program uses its port, and that every machine was given "
            "the same address."
        ) from error
    return 0


def _describe_failures(failures: Mapping[int, Any]) -> tuple[int, str]:
    """Return the exit status of the rank that failed first, and its traceback, rank and error."""
    records = {rank: _read_record(Path(each.error_file)) for rank, each in failures.items()}

    def order(rank: int) -> tuple[bool, bool, int]:
        is_stopped = not records[rank] and failures[rank].exitcode == -signal.SIGTERM
        return is_stopped, _is_consequence(records[rank]), int(failures[rank].timestamp)

    rank = min(failures, key=order)
    failure, record = failures[rank], records[rank]
    facts, message = record.get("extraInfo") or {}, str(record.get("message", ""))
    code = failure.exitcode
    if message and code < 0:
        # It was ending by itself already when it was stopped.
        code = int(record.get("errorCode") or 1)
    status = _FIRST_SIGNAL_STATUS - code if code < 0 else code
    who = f"rank {rank} (local rank {failure.local_rank} on {socket.gethostname()}) failed first"
    origin = facts.get("first_failure")
    if origin and _is_consequence(record):
        who = f"rank {origin['rank']} on {origin['host']} failed first (see its launcher's output)"
        ending = origin["error"] or "it had left the group"
    elif status == _PREEMPTED_STATUS:
        ending = f"exit status {status} (preempted: asks to be started again)"
    elif message:
        wait = f" - {facts['wait']}" if facts.get("wait") else ""
        ending = f"exit status {status}: {shorten_error(message)}{wait}"
    elif code < 0:
        ending = f"{signal.Signals(-code).name}{_SIGNAL_MEANINGS.get(-code, '')}"
    else:
        ending = f"exit status {status}"
    callstack = str(facts.get("py_callstack") or "").rstrip()
    lines = ["--- mm-dist run: the rank that failed first ---", callstack, f"{who}: {ending}"]
    return status, "\n".join(filter(None, lines))


def _is_consequence(record: Mapping[str, Any]) -> bool:
    """Whether a rank only noticed that another one had ended."""
    recorded = (record.get("extraInfo") or {}).get("is_consequence")
    # A script that does not call init_dist leaves no such record.
    return is_lost_peer(RuntimeError(record.get("message"))) if recorded is None else recorded


def _read_record(file: Path) -> Mapping[str, Any]:
    with suppress(OSError, ValueError, KeyError, TypeError):
        content = json.loads(file.read_text(encoding="utf-8"))["message"]
        return content if isinstance(content, dict) else {"message": content}
    return {}
