"""Options of ``mm-dist run``: those of torchrun, with defaults for what is left out."""

import argparse
import os
import socket
import uuid
from collections.abc import Sequence
from pathlib import Path

from mm_dist._command._output import write_error
from mm_dist._device_choice import available_device_type
from mm_dist._devices import count_devices, find_row
from mm_dist._errors import ConfigError, TorchVersionError
from mm_dist._process_group._address import own_address_towards, resolve

_CGROUP_LIMIT = Path("/sys/fs/cgroup/cpu.max")
_DEFAULT_PORT, _DEFAULT_RENDEZVOUS_PORT = 29500, 29400
_DESCRIPTION = (
    "Start a script once per device, with torch's elastic launcher behind it. All options of "
    "torchrun are taken, with dashes or underscores, and so are Kubernetes' PET_* variables."
)
_HELP = {
    "nproc_per_node": "ranks on this machine: a number, auto (accelerators, else cores), gpu, cpu, "
    "npu, xpu, ... Defaults to the number of accelerators, else 1.",
    "log_dir": "write what each rank prints to DIR/rank<N>.log as well as to the console; torch "
    "elastic keeps its own files in DIR/elastic.",
}


def read_run_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Return torchrun's options, with defaults filled in.

    Raises:
        ConfigError: If options contradict each other, or say too little.
        LaunchError: If the first machine's name cannot be resolved.
        TorchVersionError: If torch is too old for an option.
        SystemExit: Of argparse, on bad usage (status 2).
    """
    options = _build_parser().parse_args(arguments)
    options.nproc_per_node = str(count_processes(options.nproc_per_node))
    _plan_rendezvous(options)
    return options


def _build_parser() -> argparse.ArgumentParser:
    from torch.distributed.run import get_args_parser  # noqa: PLC0415 (slow, and only needed here)

    parser: argparse.ArgumentParser = get_args_parser()
    parser.prog = "mm-dist run"
    parser.description = _DESCRIPTION
    actions = {action.dest: action for action in parser._actions}  # noqa: SLF001 (no public way)
    if "local_addr" not in actions:
        parser.add_argument("--local-addr", help="needs torch 2.0 or newer")
    for name, text in _HELP.items():
        actions[name].help = text
    # torch 1.13 knows underscores only.
    known = parser._option_string_actions  # noqa: SLF001 (argparse has no public way)
    for spelling, action in list(known.items()):
        if spelling.startswith("--"):
            known.setdefault("--" + spelling[2:].replace("_", "-"), action)
            known.setdefault("--" + spelling[2:].replace("-", "_"), action)
    # Kubernetes' variables have become torch's defaults already, and stay.
    for name in ("nproc_per_node", "master_addr", "master_port", "node_rank"):
        if f"PET_{name.upper()}" not in os.environ:
            parser.set_defaults(**{name: None})
    if "PET_MONITOR_INTERVAL" not in os.environ:
        # torch 1.13 looks every 5 s whether a rank has failed; newer ones more often.
        parser.set_defaults(monitor_interval=0.1)
    return parser


def count_processes(asked: str | None) -> int:
    """Return the number of ranks for this machine.

    Args:
        asked: A number, ``auto``, ``gpu``, ``cpu``, a device type, or ``None`` for the default.

    Raises:
        ConfigError: If it is none of these, or the machine has no such device.
    """
    if asked is None or asked == "auto":
        device_type = available_device_type()
        if device_type != "cpu":
            return count_devices(find_row(device_type))
        return 1 if asked is None else count_cores()
    if asked == "cpu":
        return count_cores()
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    try:
        row = find_row("cuda" if asked == "gpu" else asked)
    except ConfigError as error:
        raise ConfigError(
            f"--nproc-per-node={asked} is not known; give a number of at least 1, auto, gpu, cpu "
            f"or a device type. {error}"
        ) from error
    count = count_devices(row)
    if count == 0:
        raise ConfigError(
            f"--nproc-per-node={asked} asks for one rank per {row.name} device, and this machine "
            "shows none; give a number, or leave the option out."
        )
    return count


def count_cores() -> int:
    """Return how many cores this process may use: its affinity, and its container's limit."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cores = cores or 1
    try:
        quota, period = _CGROUP_LIMIT.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return cores
    return max(1, min(cores, int(quota) // int(period))) if quota.isdecimal() else cores


def read_nodes(text: str) -> tuple[int, int]:
    """Return the least and the largest number of machines of ``N`` or ``MIN:MAX``.

    Raises:
        ConfigError: If it is neither.

    Example:
        >>> read_nodes("2:4")
        (2, 4)
    """
    least, _, most = text.partition(":")
    most = most or least
    if not (least.isdecimal() and most.isdecimal() and 0 < int(least) <= int(most)):
        raise ConfigError(
            f"--nnodes={text} is no number of machines; give one of at least 1, or MIN:MAX."
        )
    return int(least), int(most)


def _plan_rendezvous(options: argparse.Namespace) -> None:
    """Fill in where the machines meet."""
    from torch.distributed.launcher.api import LaunchConfig  # noqa: PLC0415 (slow)

    minimum, maximum = read_nodes(options.nnodes)
    if options.local_addr and not hasattr(LaunchConfig, "local_addr"):
        raise TorchVersionError(
            "--local-addr needs torch 2.0 or newer; leave it out, and let the machine's name "
            "resolve to the address that the others can reach."
        )
    if options.standalone and maximum > 1:
        raise ConfigError(
            f"--standalone is for one machine, --nnodes={options.nnodes} asks for more; leave out "
            "one of them."
        )
    if maximum == 1:
        _plan_one_machine(options)
    elif options.rdzv_backend == "static" and not options.rdzv_endpoint:
        _plan_static(options, minimum, maximum)
    elif options.rdzv_backend == "c10d":
        _plan_c10d(options)
    options.standalone = False
    options.node_rank = options.node_rank or 0
    options.master_addr = options.master_addr or "127.0.0.1"
    options.master_port = options.master_port or _DEFAULT_PORT


def _plan_one_machine(options: argparse.Namespace) -> None:
    is_address_given = options.rdzv_endpoint or options.master_port is not None
    is_ours = options.rdzv_backend in ("static", "c10d") and not is_address_given
    if options.standalone or is_ours:
        # The system chooses a free port, and the name keeps two jobs apart.
        options.rdzv_backend, options.rdzv_endpoint = "c10d", "localhost:0"
        options.rdzv_id = str(uuid.uuid4())
        # The machine's name need not resolve.
        options.local_addr = options.local_addr or "localhost"


def _plan_static(options: argparse.Namespace, minimum: int, maximum: int) -> None:
    if minimum != maximum:
        raise ConfigError(
            f"--nnodes={options.nnodes} lets machines come and go, which needs --rdzv-backend=c10d "
            "and --rdzv-endpoint=FIRST_MACHINE:PORT."
        )
    if options.max_restarts:
        write_error(
            "mm-dist run: --max-restarts over several machines restarts each of them alone, so "
            "that they do not meet again; add --rdzv-backend=c10d and "
            "--rdzv-endpoint=FIRST_MACHINE:PORT."
        )
    if options.master_addr is None and options.node_rank != 0:
        raise ConfigError(
            f"--nnodes={options.nnodes} needs --master-addr, the address of the first machine, "
            "the same on all."
        )
    if options.node_rank is None:
        port = options.master_port or _DEFAULT_PORT
        is_first = can_host(resolve(options.master_addr, port)[0][0], port)
        if not is_first and maximum > 2:
            raise ConfigError(
                f"--nnodes={options.nnodes} needs --node-rank on all machines but the first: a "
                "number from 1, different on each."
            )
        options.node_rank = 0 if is_first else 1
    elif options.node_rank >= maximum:
        raise ConfigError(
            f"--node-rank={options.node_rank} is too large for --nnodes={options.nnodes}; the "
            "machines count from 0."
        )


def _plan_c10d(options: argparse.Namespace) -> None:
    from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint  # noqa: PLC0415

    if not options.rdzv_endpoint:
        raise ConfigError(
            f"--nnodes={options.nnodes} with --rdzv-backend=c10d needs --rdzv-endpoint=HOST:PORT, "
            "the address of the first machine, the same on all."
        )
    try:
        host, port = parse_rendezvous_endpoint(options.rdzv_endpoint, _DEFAULT_RENDEZVOUS_PORT)
    except ValueError as error:
        raise ConfigError(
            f"--rdzv-endpoint={options.rdzv_endpoint} is not HOST:PORT: {error}"
        ) from error
    address = resolve(host, port)[0][0]
    # torch compares host names, which fails where a machine's name means its loopback address.
    if "is_host" not in options.rdzv_conf:
        is_host = can_host(address, port) if options.node_rank is None else options.node_rank == 0
        options.rdzv_conf = ",".join(filter(None, [options.rdzv_conf, f"is_host={int(is_host)}"]))
    options.local_addr = options.local_addr or own_address_towards(address)
    # torch would warn that this backend does not use it.
    options.node_rank = 0


def can_host(address: str, port: int) -> bool:
    """Return whether the address is this machine's own, and the port is free there."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, port))
            listener.listen()
        except OSError:
            return False
    return True
