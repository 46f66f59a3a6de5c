"""Resolve the address of rank 0, and wait until its port accepts connections."""

import ipaddress
import logging
import socket
import threading
import time
from collections.abc import Mapping

from mm_dist._errors import LaunchError

_logger = logging.getLogger(__name__)
# A wrong name is an error within 10 s, the start of Python and torch included; one that appears a
# little late, as in Kubernetes, is found. A name server that is silent is worth more patience than
# one that knows no such name: the resolver asks the next one after 5 s.
_RESOLUTION_BUDGET_S, _UNKNOWN_NAME_S, _RETRY_S = 6.0, 3.0, 0.5
_CONNECTION_S, _PATIENCE_S, _LONGEST_PAUSE_S = 5.0, 30.0, 1.0

Address = tuple[str, int]


def resolve(host: str, port: int, budget_s: float = _RESOLUTION_BUDGET_S) -> list[Address]:
    """Return the numeric addresses of a machine.

    A given address is returned as it is. A name that is not known is asked for again for 3 s.

    Args:
        host: Name or address.
        port: Goes into the result unchanged.
        budget_s: The longest time that this may take, even if the resolver itself hangs.

    Raises:
        LaunchError: If the name has no address by then; the message names it.

    Example:
        >>> resolve("127.0.0.1", 29500)
        [('127.0.0.1', 29500)]
    """
    if _is_numeric(host):
        return [(host, port)]
    start = time.monotonic()
    while True:
        found, reason = _ask_resolver(host, start + budget_s - time.monotonic())
        if found:
            return [(text, port) for text in found]
        spent_s = time.monotonic() - start
        if spent_s + _RETRY_S >= min(budget_s, _UNKNOWN_NAME_S):
            raise LaunchError(
                f"The name {host!r} of rank 0's machine is not known on {socket.gethostname()}: "
                f"{reason}; asked for {spent_s:.1f} s. Check the name, or set MASTER_ADDR to the "
                "machine's address on all ranks."
            )
        time.sleep(_RETRY_S)


def _is_numeric(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _ask_resolver(host: str, limit_s: float) -> tuple[list[str], str]:
    """Return addresses, or the reason why there are none.

    In a thread: a resolver that waits for a silent name server cannot be interrupted.
    """
    found: list[str] = []
    reasons = ["the resolver did not answer"]

    def ask() -> None:
        try:
            answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            reasons.append(str(error))
        else:
            found.extend(dict.fromkeys(str(answer[4][0]) for answer in answers))

    thread = threading.Thread(target=ask, name="mm_dist-resolver", daemon=True)
    thread.start()
    thread.join(max(limit_s, 0))
    return found, reasons[-1]


def is_own_address(addresses: list[Address]) -> bool:
    """Return whether this machine has one of the addresses.

    One that does not may lead here nevertheless, as that of a gateway in front.

    Example:
        >>> is_own_address([("127.0.0.1", 29500)])
        True
    """
    return any(can_host(text, 0) for text, _ in addresses)


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
    """Wait until the port accepts connections; rank 0 may start late.

    Raises:
        LaunchError: If the name is not known, or the port stays closed. The message says which
            addresses were tried and what each answered.
    """
    start = time.monotonic()
    addresses = resolve(host, port)
    pause_s, is_quiet = 0.01, True
    while True:
        left_s = start + limit_s - time.monotonic()
        answers = {a: _try_to_connect(a, min(_CONNECTION_S, max(left_s, 0.1))) for a in addresses}
        if None in answers.values():
            return
        if left_s <= pause_s:
            raise LaunchError(
                f"Rank {rank} cannot reach rank 0 at {host}:{port} within {limit_s:g} s; tried "
                f"{_describe_answers(host, answers)}. Check that rank 0 was started on that "
                "machine, that MASTER_ADDR and MASTER_PORT are the same on all ranks, and that no "
                "firewall is between."
            )
        if is_quiet and time.monotonic() - start > _PATIENCE_S:
            is_quiet = False
            _logger.warning(
                "rank %d still waits for rank 0: %s", rank, _describe_answers(host, answers)
            )
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        if pause_s == _LONGEST_PAUSE_S and not _is_numeric(host):
            # A restarted container has another address.
            addresses = [(text, port) for text in _ask_resolver(host, _RETRY_S)[0]] or addresses


def _try_to_connect(address: Address, limit_s: float) -> str | None:
    """Return ``None`` if the connection was accepted, else the reason."""
    try:
        socket.create_connection(address, timeout=limit_s).close()
    except OSError as error:
        return error.strerror or str(error)
    return None


def _describe_answers(host: str, answers: Mapping[Address, str | None]) -> str:
    shown = ((f"[{text}]" if ":" in text else text, port) for text, port in answers)
    tried = ", ".join(
        f"{text}:{port} ({answer})"
        for (text, port), answer in zip(shown, answers.values(), strict=True)
    )
    return tried if _is_numeric(host) else f"{host} -> {tried}"
