"""The keys in the job's store through which the ranks' watchers talk."""

import socket
from typing import Any, NamedTuple

from mm_dist._process_group._address import resolve
from mm_dist._process_group._store import StoreAddress

REQUESTS = "requests"
REPORTS = "reports"
_LEFT_WITHOUT_ITERATION = -1
# torch's store looks up the name of whoever connects, and answers nobody meanwhile: a resolver that
# loses a message takes 5 s or 10 s.
_CONNECT_S = 12.0


class Note(NamedTuple):
    """What the store knows about a rank, short of its sample.

    Attributes:
        num_answers: One more than the number of the newest request it answered; 0 if it has
            published nothing.
        has_left: Whether it ended its process group.
        iteration: In which iteration it did; ``None`` if it did not, or did not count.
    """

    num_answers: int
    has_left: bool = False
    iteration: int | None = None


class Board:
    """A connection of its own to the store that the ranks have met at.

    Not torch's connection: the training thread may hold its lock while it waits for others. Only
    ``set``, ``get``, ``add`` and ``delete_key`` are used: torch 1.13 has no way to ask whether a
    key exists, other than adding 0 to it, and its ``compare_set`` crashes on keys that were set.

    Args:
        address: Where the store is.
        prefix: What the keys of this group begin with.

    Raises:
        ConnectionError: If nobody answers there.
        LaunchError: If its name is not known any more.
    """

    def __init__(self, address: StoreAddress, prefix: str) -> None:
        self._line = _call(address)
        store = address.connect(_CONNECT_S)
        if store is None:
            self._line.close()
            raise ConnectionError(f"no store answers at {address}")
        self._store: Any = store
        self._prefix = prefix

    def check_store(self) -> None:
        """Check that the store is still there; torch's client prints a C++ stack if it is not.

        Raises:
            ConnectionError: If it has ended.
        """
        try:
            # Nothing is ever said on this line. That it ends is a fact about the other side.
            is_over = self._line.recv(1) == b""
        except BlockingIOError:
            return
        if is_over:
            raise ConnectionError("the store has ended")

    def close(self) -> None:
        """Disconnect, whether the store is there or not."""
        self._line.close()
        self._store = None

    def publish(self, rank: int, request: int, sample: str) -> None:
        """Show a rank's sample, which answers a request and all before it."""
        self._store.set(f"{self._prefix}/{rank}/sample", sample)
        self._store.set(_note_key(self._prefix, rank), str(request + 1))

    def withdraw(self, rank: int) -> None:
        """Take a rank's sample away."""
        # First the note: who finds one reads the sample.
        self._store.delete_key(_note_key(self._prefix, rank))
        self._store.delete_key(f"{self._prefix}/{rank}/sample")

    def read_note(self, rank: int) -> Note:
        """Return what there is about a rank; one exchange with the store."""
        value = int(self._store.add(_note_key(self._prefix, rank), 0))
        if value >= 0:
            return Note(value)
        iteration = None if value == _LEFT_WITHOUT_ITERATION else -value - 2
        return Note(0, has_left=True, iteration=iteration)

    def read_sample(self, rank: int) -> str:
        """Return the sample of a rank whose note counts answers."""
        return bytes(self._store.get(f"{self._prefix}/{rank}/sample")).decode()

    def count(self, name: str, more: int = 0) -> int:
        """Add to one of the counters that the ranks share, and return it."""
        return int(self._store.add(f"{self._prefix}/{name}", more))

    def claim(self, name: str) -> bool:
        """Return whether this rank is the first to claim something."""
        return self.count(f"claim/{name}", 1) == 1

    def write_report(self, number: int, text: str) -> None:
        """Keep the text of a report, and count it."""
        self._store.set(f"{self._prefix}/report/{number}", text)
        self.count(REPORTS, 1)

    def read_report(self, number: int) -> str:
        """Return the text of a report that has been counted."""
        return bytes(self._store.get(f"{self._prefix}/report/{number}")).decode()


def _call(address: StoreAddress) -> socket.socket:
    """Return a plain connection to the store, for nothing but to see when it ends."""
    reason: OSError | None = None
    for numeric in resolve(address.host, address.port, _CONNECT_S):
        try:
            line = socket.create_connection(numeric, timeout=_CONNECT_S)
        except OSError as error:
            reason = error
        else:
            line.settimeout(0)
            return line
    raise ConnectionError(f"no store listens at {address}") from reason


def _note_key(prefix: str, rank: int) -> str:
    return f"{prefix}/{rank}/note"


def leave(store: Any, prefix: str, rank: int, iteration: int | None) -> None:
    """Note that a rank ends its group.

    By torch's own connection and in a single message without an answer: the process that holds the
    store may be gone already when a job ends, and nothing shall wait for it or complain.
    """
    value = _LEFT_WITHOUT_ITERATION if iteration is None else -max(iteration, 0) - 2
    store.set(_note_key(prefix, rank), str(value))
