"""The keys in the job's store through which the ranks' hang reports communicate."""

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
LEFT = -1  # published in place of the count by a rank that left the group


class Board:
    """A separate connection to the store that the ranks have met at.

    Not torch's connection: the training thread may hold its lock while it waits for others. Only
    ``set``, ``get``, ``add`` and ``delete_key`` are used: torch 1.13 has no way to ask whether a
    key exists, other than adding 0 to it.
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
        """Raise ``ConnectionError`` if the store has ended; torch would print a C++ stack."""
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

    def publish(self, rank: int, sample: Sample) -> None:
        """Publish a rank's sample; each time shows that the rank is alive."""
        self._store.set(f"{self._prefix}/{rank}/sample", sample.encode())
        self.count(f"{rank}/times", 1)

    def withdraw(self, rank: int) -> None:
        """Delete a rank's sample."""
        # First the number: whoever finds one reads the sample.
        for name in ("times", "sample"):
            self._store.delete_key(f"{self._prefix}/{rank}/{name}")

    def survey(self, own_rank: int, own: Sample, world_size: int, limit_s: float) -> Survey:
        """Return the samples of all ranks, once each has published another or the limit is over."""
        deadline = time.monotonic() + limit_s
        peers = {rank: Peer() for rank in range(world_size)}
        peers[own_rank] = Peer(own, is_answer=True)
        missing = {rank: self.count(f"{rank}/times") for rank in peers if rank != own_rank}
        while missing:
            is_over = time.monotonic() >= deadline
            for rank, before in list(missing.items()):
                times = self.count(f"{rank}/times")
                if times == LEFT:
                    peers[rank] = Peer(has_left=True)
                elif times != before or (is_over and times):
                    text = bytes(self._store.get(f"{self._prefix}/{rank}/sample")).decode()
                    sample = Sample.decode(text)
                    # A rank that has failed publishes once.
                    peers[rank] = Peer(sample, is_answer=times != before or bool(sample.error))
                if times == LEFT or times != before:
                    del missing[rank]
            if is_over:
                break
            time.sleep(_PAUSE_S)
        return Survey(peers, group_members(), group_name(dist.group.WORLD))

    def write_report(self, number: int, report: Report | None) -> None:
        """Keep a report, or that there is nothing to report, and count it."""
        self._store.set(f"{self._prefix}/report/{number}", json.dumps(report))
        self.count("reports", 1)

    def read_report(self, number: int) -> Report | None:
        """Return a report that has been counted."""
        content = json.loads(bytes(self._store.get(f"{self._prefix}/report/{number}")))
        return None if content is None else Report(*content)
