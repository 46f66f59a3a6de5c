"""Decide where the machines of ``mm-dist run`` meet, and which of them is the host.

torch's own guess compares host names, and fails where a machine's name means its loopback
address; then all wait for each other. Whether an address is this machine's own is certain: only
then can a socket be bound to it.
"""

import argparse
import errno
import socket
import uuid

from mm_dist._command._output import write_error
from mm_dist._errors import ConfigError, LaunchError, TorchVersionError
from mm_dist._process_group._address import own_address_towards, resolve
from mm_dist._process_group._interface import is_loopback

DEFAULT_PORT = 29500
_DEFAULT_RENDEZVOUS_PORT = 29400


def plan_rendezvous(options: argparse.Namespace) -> None:
    """Fill in what was left out of the rendezvous options.

    Raises:
        ConfigError: If the options contradict each other, or say too little.
        LaunchError: If the first machine's name cannot be resolved.
        TorchVersionError: If torch is too old for an option.
    """
    minimum, maximum = read_nodes(options.nnodes)
    _check_local_addr(options)
    if options.standalone and maximum > 1:
        raise ConfigError(
            f"--standalone is for one machine, --nnodes={options.nnodes} asks for more; leave out "
            "one of them."
        )
    if maximum == 1:
        _plan_one_machine(options)
    elif options.rdzv_backend == "static" and not options.rdzv_endpoint:
        _plan_static(options, minimum, maximum)
    elif options.rdzv_backend in ("static", "c10d"):
        _plan_endpoint(options)
    options.standalone = False
    options.node_rank = options.node_rank or 0
    options.master_addr = options.master_addr or "127.0.0.1"
    options.master_port = options.master_port or DEFAULT_PORT


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


def _check_local_addr(options: argparse.Namespace) -> None:
    from torch.distributed.launcher.api import LaunchConfig  # noqa: PLC0415 (slow)

    if options.local_addr and not hasattr(LaunchConfig, "local_addr"):
        raise TorchVersionError(
            "--local-addr needs torch 2.0 or newer; leave it out, and let the machine's name "
            "resolve to the address that the others can reach."
        )


def _plan_one_machine(options: argparse.Namespace) -> None:
    is_address_given = options.rdzv_endpoint or options.master_port is not None
    if options.rdzv_backend not in ("static", "c10d") and not options.standalone:
        return
    if is_address_given and not options.standalone:
        return
    # The system chooses a port that is free, and the name keeps two jobs apart.
    options.rdzv_backend = "c10d"
    options.rdzv_endpoint = "localhost:0"
    options.rdzv_id = str(uuid.uuid4())
    # Else the ranks would look for the machine by its name, which need not resolve.
    options.local_addr = options.local_addr or "localhost"


def _plan_static(options: argparse.Namespace, minimum: int, maximum: int) -> None:
    if minimum != maximum:
        raise ConfigError(
            f"--nnodes={options.nnodes} lets machines come and go, which needs --rdzv-backend=c10d "
            "and --rdzv-endpoint=FIRST_MACHINE:PORT."
        )
    if options.max_restarts:
        write_error(
            "mm-dist run: --max-restarts over several machines restarts them apart from each "
            "other, so that they do not meet again; add --rdzv-backend=c10d and "
            "--rdzv-endpoint=FIRST_MACHINE:PORT."
        )
    if options.master_addr is None and options.node_rank != 0:
        raise ConfigError(
            f"--nnodes={options.nnodes} needs --master-addr, the address of the first machine, "
            "the same on all."
        )
    if options.node_rank is None:
        options.node_rank = _find_node_rank(options, maximum)
    elif options.node_rank >= maximum:
        raise ConfigError(
            f"--node-rank={options.node_rank} is too large for --nnodes={options.nnodes}; the "
            "machines count from 0."
        )
    if options.node_rank:
        first_address(options.master_addr)


def _find_node_rank(options: argparse.Namespace, maximum: int) -> int:
    port = options.master_port or DEFAULT_PORT
    if can_host(first_address(options.master_addr), port):
        return 0
    if maximum == 2:
        return 1
    raise ConfigError(
        f"--nnodes={options.nnodes} needs --node-rank on all machines but the first: a number from "
        "1, different on each."
    )


def _plan_endpoint(options: argparse.Namespace) -> None:
    if not options.rdzv_endpoint:
        raise ConfigError(
            f"--nnodes={options.nnodes} with --rdzv-backend=c10d needs --rdzv-endpoint=HOST:PORT, "
            "the address of the first machine, the same on all."
        )
    if options.rdzv_backend == "static":
        return
    host, port = split_endpoint(options.rdzv_endpoint)
    address = first_address(host)
    conf = options.rdzv_conf
    if "is_host" not in conf:
        is_host = can_host(address, port) if options.node_rank is None else options.node_rank == 0
        options.rdzv_conf = ",".join(filter(None, [conf, f"is_host={int(is_host)}"]))
    if options.local_addr is None:
        options.local_addr = own_address_towards(address)
        _warn_of_loopback(host, options.local_addr)
    # It has said its part; torch would warn that this backend does not use it.
    options.node_rank = 0


def split_endpoint(endpoint: str) -> tuple[str, int]:
    """Return host and port of ``HOST``, ``HOST:PORT`` or ``[IPv6]:PORT``.

    Raises:
        ConfigError: If the port is none.

    Example:
        >>> split_endpoint("node1:29400")
        ('node1', 29400)
    """
    from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint  # noqa: PLC0415

    try:
        host, port = parse_rendezvous_endpoint(endpoint, _DEFAULT_RENDEZVOUS_PORT)
    except ValueError as error:
        raise ConfigError(f"--rdzv-endpoint={endpoint} is not HOST:PORT: {error}") from error
    return str(host), int(port)


def first_address(host: str) -> str:
    """Return the first address of a machine.

    Raises:
        LaunchError: If the name is not known within some seconds.

    Example:
        >>> first_address("127.0.0.1")
        '127.0.0.1'
    """
    return resolve(host, 0)[0][0]


def can_host(address: str, port: int) -> bool:
    """Return whether the address is this machine's own, and the port is free there.

    Where it is taken, the host is another launcher on this machine.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, port))
            listener.listen()
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
                return False
            raise LaunchError(f"Cannot listen on {address}:{port}: {error}.") from error
    return True


def _warn_of_loopback(host: str, address: str | None) -> None:
    if is_loopback(address) and host != "localhost" and not host.startswith(("127.", "::1")):
        write_error(
            f"mm-dist run: {host!r} means {address} here, which no other machine can reach; give "
            "its address instead of its name, or --local-addr."
        )
