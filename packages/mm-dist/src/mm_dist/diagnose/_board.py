"""The keys in the job's store through which the ranks' hang reports talk."""

import json
import socket
import time
from typing import Any

import torch.distributed as dist

from mm_dist._rendezvous._address import resolve
from mm_dist._rendezvous._store import StoreAddress
from mm_dist._torch_private import group_members, group_name
from mm_dist.diagnose._report import Peer, Report, Survey
from mm_dist.diagnose._sample import Sample

# torch's store looks up the name of whoever connects, and answers nobody meanwhile: a resolver that
# loses a message takes 5 s or 10 s.
_CONNECT_S, _PAUSE_S = 12.0, 0.05
# In place of a request's number: answers every one that will ever be made.
FINAL = 2**31
_LEFT_WITHOUT_ITERATION = -1


class Board:
    """A connection of its own to the store that the ranks have met at.

    Not torch's connection: the training thread may hold its lock while it waits for others. Only
    ``set``, ``get``, ``add`` and ``delete_key`` are used: torch 1.13 has no way to ask whether a
    key exists, other than adding 0 to it, and its ``compare_set`` crashes on keys that were set.

    Args:
        address: Where the store is.
        prefix: What the keys of this group begin with.

    Raises:
        ConnectionError: If there is no store any more.
        LaunchError: If its name is not known any more.
    """

    def __init__(self, address: StoreAddress, prefix: str) -> None:
        self._prefix = prefix
        # Carries no data: its end shows that the store has ended.
        self._line = socket.create_connection(
            resolve(address.host, address.port, _CONNECT_S)[0], timeout=_CONNECT_S
        )
        self._line.settimeout(0)
        self._store: Any = address.connect(_CONNECT_S)
        if self._store is None:
            self._line.close()
            raise ConnectionError(f"no store answers at {address}")

    def check_store(self) -> None:
        """Check that the store is still there; torch's client prints a C++ stack if it is not.

        Raises:
            ConnectionError: If it has ended.
        """
        try:
            is_over = self._line.recv(1) == b""
        except BlockingIOError:
            return
        if is_over:
            raise ConnectionError("the store has ended")

    def close(self) -> None:
        """Disconnect, whether the store is there or not."""
        self._line.close()
        self._store = None

    def count(self, name: str, more: int = 0) -> int:
        """Add to one of the counters that the ranks share, and return it."""
        return int(self._store.add(f"{self._prefix}/{name}", more))

    def publish(self, rank: int, request: int, sample: Sample) -> None:
        """Show a rank's sample, which answers a request and all before it."""
        self._store.set(f"{self._prefix}/{rank}/sample", sample.encode())
        self._store.set(f"{self._prefix}/{rank}/note", str(request + 1))

    def withdraw(self, rank: int) -> None:
        """Take a rank's sample away."""
        # First the note: who finds one reads the sample.
        for name in ("note", "sample"):
            self._store.delete_key(f"{self._prefix}/{rank}/{name}")

    def ask_ranks(self, own_rank: int, own: Sample, world_size: int, limit_s: float) -> Survey:
        """Ask every rank for a sample, and return what came within the limit.

        Ranks are asked one by one, by this rank alone: the cost is linear in their number.
        """
        deadline = time.monotonic() + limit_s
        request = self.count("requests", 1)
        peers = {rank: Peer() for rank in range(world_size)}
        peers[own_rank] = Peer(own, is_answer=True)
        open_ranks = [rank for rank in peers if rank != own_rank]
        while open_ranks:
            peers |= {rank: self._read_peer(rank, request) for rank in open_ranks}
            open_ranks = [
                rank for rank in open_ranks if not (peers[rank].is_answer or peers[rank].has_left)
            ]
            if time.monotonic() >= deadline:
                break
            time.sleep(_PAUSE_S)
        return Survey(peers, group_members(), group_name(dist.group.WORLD))

    def _read_peer(self, rank: int, request: int) -> Peer:
        note = self.count(f"{rank}/note")
        if note < 0:
            iteration = None if note == _LEFT_WITHOUT_ITERATION else -note - 2
            return Peer(has_left=True, last_iteration=iteration)
        if note == 0:
            return Peer()
        text = bytes(self._store.get(f"{self._prefix}/{rank}/sample")).decode()
        return Peer(Sample.decode(text), is_answer=note > request)

    def write_report(self, number: int, report: Report | None) -> None:
        """Keep a report, or that there is nothing to report, and count it."""
        self._store.set(f"{self._prefix}/report/{number}", json.dumps(report))
        self.count("reports", 1)

    def read_report(self, number: int) -> Report | None:
        """Return what was kept under the number of a report that has been counted."""
        content = json.loads(bytes(self._store.get(f"{self._prefix}/report/{number}")))
        return None if content is None else Report(*content)


def note_departure(store: Any, prefix: str, rank: int, iteration: int | None) -> None:
    """Note that a rank ends its group.

    By torch's own connection and in a single message without an answer: the process that holds the
    store may be gone already when a job ends, and nothing shall wait for it or complain.
    """
    value = _LEFT_WITHOUT_ITERATION if iteration is None else -max(iteration, 0) - 2
    store.set(f"{prefix}/{rank}/note", str(value))
