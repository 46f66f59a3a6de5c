"""Whether every rank can open a connection to every other one."""

import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from mm_dist._command._check_facts import Problem

_CONNECT_LIMIT_S, _MOST_THREADS = 3.0, 16


class Doorbell:
    """Listens on a free port, and answers each visitor with a word that only this rank knows.

    The word proves that it is this rank that answers, and not another program or machine.
    """

    def __init__(self) -> None:
        self.word = secrets.token_hex(8)
        self._listener = _listen_everywhere()
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._answer, daemon=True)
        self._thread.start()

    def _answer(self) -> None:
        while True:
            try:
                visitor, _ = self._listener.accept()
                with visitor:
                    visitor.sendall(self.word.encode())
            except ConnectionError:
                continue
            except OSError:
                return  # closed

    def close(self) -> None:
        """Stop answering."""
        # What is only closed may leave the thread in accept.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def _listen_everywhere() -> socket.socket:
    # A kernel that has IPv6 may have it switched off.
    with suppress(OSError):
        if socket.has_dualstack_ipv6():
            family = socket.AF_INET6
            return socket.create_server(("", 0), family=family, dualstack_ipv6=True, backlog=512)
    return socket.create_server(("", 0), backlog=512)


def ring_others(
    rank: int, doors: Mapping[int, Mapping[str, Any]], limit_s: float
) -> list[dict[str, Any]]:
    """Connect to every other rank; return those that could not be reached, with what was tried.

    Args:
        rank: This rank.
        doors: Of each rank ``addresses``, ``port`` and ``word``.
        limit_s: When the time is over, the ranks that are left count as not reached.
    """
    end = time.monotonic() + limit_s
    ranks = sorted(doors)
    start = ranks.index(rank)
    # Each begins with the next one, so that they do not all come to rank 0 at once.
    others = ranks[start + 1 :] + ranks[:start]
    with ThreadPoolExecutor(min(_MOST_THREADS, max(1, len(others)))) as pool:
        tried = list(pool.map(lambda other: _ring(doors[other], end), others))
    return [
        {"rank": other, "tried": failures}
        for other, failures in zip(others, tried, strict=True)
        if failures is not None
    ]


def _ring(door: Mapping[str, Any], end: float) -> list[str] | None:
    """Return ``None`` if the rank behind the door answered, else what was tried."""
    failures = []
    for address in door["addresses"]:
        left = end - time.monotonic()
        if left <= 0:
            failures.append(f"{address}:{door['port']} not tried, the time was over")
            break
        limit = min(_CONNECT_LIMIT_S, left)
        try:
            with socket.create_connection((address, door["port"]), timeout=limit) as line:
                answer = line.recv(64).decode(errors="replace")
        except OSError as error:
            failures.append(f"{address}:{door['port']} {error}")
            continue
        if answer == door["word"]:
            return None
        failures.append(f"{address}:{door['port']} is another program or machine")
    return failures or ["it has no address that others could use"]


def find_unreachable(
    reports: Mapping[int, Sequence[Mapping[str, Any]]], hosts: Mapping[int, str]
) -> list[Problem]:
    """Return one problem for each pair that could not connect.

    The rank to look at is the one of the pair that takes part in more such pairs.
    """
    pairs = [(rank, missed) for rank, report in reports.items() for missed in report]
    counts: Counter[int] = Counter()
    for rank, missed in pairs:
        counts.update((rank, missed["rank"]))
    problems = []
    for rank, missed in pairs:
        other = missed["rank"]
        text = (
            f"rank {rank} on {hosts[rank]} cannot reach rank {other} on {hosts[other]}: "
            f"{'; '.join(missed['tried'])}"
        )
        suspect = max((rank, other), key=lambda each: (counts[each], each))
        problems.append(Problem("connection", suspect, text))
    return problems
