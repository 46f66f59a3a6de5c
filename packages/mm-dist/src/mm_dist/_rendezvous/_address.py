"""Resolve the address of rank 0, and wait until its port accepts connections."""

import socket
import time
from contextlib import suppress

from mm_dist._errors import LaunchError

# A wrong name is an error within 10 s, the start of Python and torch included; one that appears a
# little late, as in Kubernetes, is found.
_UNKNOWN_NAME_S, _RETRY_S = 3.0, 0.5
_CONNECTION_S, _LONGEST_PAUSE_S = 5.0, 1.0

Address = tuple[str, int]


def resolve(host: str, port: int, limit_s: float = _UNKNOWN_NAME_S) -> list[Address]:
    """Return the numeric addresses of a machine."""
    end = time.monotonic() + limit_s
    while True:
        try:
            answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            if time.monotonic() + _RETRY_S >= end:
                raise LaunchError(
                    f"The name {host!r} of rank 0's machine is not known on "
                    f"{socket.gethostname()}: {error}. Check the name, or set MASTER_ADDR to the "
                    "machine's address on all ranks."
                ) from error
            time.sleep(_RETRY_S)
        else:
            return [(text, port) for text in dict.fromkeys(str(one[4][0]) for one in answers)]


def can_host(address: str, port: int) -> bool:
    """Return whether a numeric address is this machine's own, and the port is free there."""
    try:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(found[0], found[1]) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(found[4])
            listener.listen()
    except OSError:
        return False
    return True


def own_address_towards(address: str) -> str | None:
    """Return the address that this machine shows to another one; sends nothing."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 1))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def is_listening(addresses: list[Address], limit_s: float = _CONNECTION_S) -> bool:
    """Return whether one of the addresses accepts connections."""
    return any(_try_to_connect(address, limit_s) is None for address in addresses)


def wait_for_listener(host: str, port: int, limit_s: float, rank: int) -> None:
    """Wait until the port accepts connections; rank 0 may start late."""
    start = time.monotonic()
    addresses = resolve(host, port)
    pause_s = 0.01
    while True:
        left_s = start + limit_s - time.monotonic()
        answers = {a: _try_to_connect(a, min(_CONNECTION_S, max(left_s, 0.1))) for a in addresses}
        if None in answers.values():
            return
        if left_s <= pause_s:
            tried = ", ".join(
                f"{f'[{text}]' if ':' in text else text}:{port} ({answer})"
                for (text, port), answer in answers.items()
            )
            raise LaunchError(
                f"Rank {rank} cannot reach rank 0 at {host}:{port} within {limit_s:g} s; tried "
                f"{tried if addresses == [(host, port)] else f'{host} -> {tried}'}. Check that "
                "rank 0 was started on that machine, that MASTER_ADDR and MASTER_PORT are the same "
                "on all ranks, and that no firewall is between."
            )
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        if pause_s == _LONGEST_PAUSE_S:
            # A restarted container has another address.
            with suppress(LaunchError):
                addresses = resolve(host, port, 0)


def _try_to_connect(address: Address, limit_s: float) -> str | None:
    """Return ``None`` if the connection was accepted, else the reason."""
    try:
        socket.create_connection(address, timeout=limit_s).close()
    except OSError as error:
        return error.strerror or str(error)
    return None
