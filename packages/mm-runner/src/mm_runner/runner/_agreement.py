"""The step after which all processes stop or save, agreed without a collective in the steps.

A process that requests something counts it in torch's store, where a thread of every process looks
now and then. A thread that finds a request first makes its main thread wait at the end of its step,
then notes how many steps that thread has done: it may be there, or one step on, but no further. One
step after the furthest of all is thus a step that no process has left; the first process writes it
down, and all continue to there.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import torch.distributed as dist

from mm_runner._torch_private import default_store

if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = ["Agreement", "OwnStore", "Verdict"]

# torch's type information does not list these names, and a build may lack them.
_DIST: Any = dist
_STORE_TIMEOUT = timedelta(seconds=30)
# How often a process looks, and how many of them may look in a second.
_INTERVAL_S, _MOST_LOOKS = 0.2, 1000
_PENDING_INTERVAL_S = 0.01
# The thread may be talking to a store that does not answer: a process that fails must not hang.
_JOIN_S = 0.5


class OwnStore:
    """The store of the default process group, over a connection of its own.

    The main thread may hold the lock of torch's connection while it waits for other ranks.

    Args:
        token: Prefix of the keys; the same on all ranks, and never used before.

    Raises:
        OSError: If the store cannot be reached.
    """

    def __init__(self, token: str) -> None:
        store = default_store()
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        self._line: socket.socket | None = None
        if isinstance(store, _DIST.TCPStore):
            self._line = socket.create_connection((store.host, store.port), timeout=5.0)
            self._line.setblocking(False)  # noqa: FBT003
            options = {"is_master": False, "wait_for_workers": False, "timeout": _STORE_TIMEOUT}
            store = _DIST.TCPStore(store.host, store.port, **options)
        prefixed = _DIST.PrefixStore(f"mm_runner/{token}", store)
        self.add, self.set, self.get = prefixed.add, prefixed.set, prefixed.get

    def check(self) -> None:
        """Raise if the store has ended; torch's client would print a C++ stack.

        Raises:
            ConnectionError: If it has ended.
        """
        with suppress(BlockingIOError):
            if self._line is not None and self._line.recv(1) == b"":
                raise ConnectionError("the store has ended")

    def close(self) -> None:
        """Disconnect."""
        if self._line is not None:
            self._line.close()


class Verdict(NamedTuple):
    """The decision of all processes.

    Args:
        place: Steps, and ends of validations, after which it holds.
        wish: The strongest request.
    """

    place: int
    wish: int


class Agreement:
    """The thread by which a process agrees with the others.

    Args:
        store: Common to all.
        rank: Of this process.
        world_size: Number of processes.
        place: Returns how many places the main thread has come to.
        on_pending: Called by the thread when the main thread has to wait.
    """

    def __init__(
        self,
        store: OwnStore,
        rank: int,
        world_size: int,
        place: Callable[[], int],
        on_pending: Callable[[], None],
    ) -> None:
        self._store, self._rank, self._world_size = store, rank, world_size
        self._place, self._on_pending = place, on_pending
        self._interval_s = max(_INTERVAL_S, world_size / _MOST_LOOKS)
        self._round = 0
        self._wishes: set[int] = set()
        self._counted: set[int] = set()
        self._is_pending = False
        self._verdict: Verdict | None = None
        self._lock = threading.Lock()
        self._is_decided, self._is_over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="mm_runner-agree", daemon=True)
        self._thread.start()

    def wish(self, wish: int) -> None:
        """Request something of all processes; greater numbers win. Does not wait."""
        self._wishes.add(wish)

    def verdict(self, timeout_s: float) -> Verdict | None:
        """Return the decision once there is a request; ``None`` if it takes longer."""
        self._is_decided.wait(timeout_s)
        return self._verdict

    def close_round(self) -> None:
        """Begin the next round; the main thread has acted on the verdict."""
        with self._lock:
            done = self._verdict.wish if self._verdict is not None else 0
            # One by one: a signal may add another at any instant.
            for wish in range(done + 1):
                self._wishes.discard(wish)
            self._is_decided.clear()
            self._counted, self._verdict, self._is_pending = set(), None, False
            self._round += 1

    def stop(self) -> None:
        """End the thread."""
        self._is_over.set()
        self._thread.join(_JOIN_S)
        if not self._thread.is_alive():
            self._store.close()

    def _watch(self) -> None:
        try:
            while not self._is_over.wait(
                _PENDING_INTERVAL_S
                if self._is_pending and not self._is_decided.is_set()
                else self._interval_s
            ):
                self._store.check()
                with self._lock:
                    if not self._is_decided.is_set():
                        self._look()
        except (OSError, RuntimeError):
            return  # the store ended with another process; whoever waits gives up after a while

    def _look(self) -> None:
        for wish in sorted(self._wishes - self._counted):
            self._count(f"wish/{wish}", 1)
            self._count("wishes", 1)
            self._counted.add(wish)
        if not self._is_pending:
            if self._count("wishes") == 0:
                return
            self._is_pending = True
            self._on_pending()  # first, see above
            self._store.set(f"{self._round}/place/{self._rank}", str(self._place()))
            self._count("places", 1)
        if self._rank == 0 and self._count("places") == self._world_size:
            places = [self._read(f"place/{rank}")[0] for rank in range(self._world_size)]
            strongest = max(wish for wish in range(1, 10) if self._count(f"wish/{wish}"))
            self._store.set(f"{self._round}/verdict", f"{max(places) + 1} {strongest}")
            self._count("decided", 1)
        if self._count("decided"):
            self._verdict = Verdict(*self._read("verdict"))
            self._is_decided.set()

    def _read(self, key: str) -> list[int]:
        return [int(number) for number in self._store.get(f"{self._round}/{key}").split()]

    def _count(self, key: str, amount: int = 0) -> int:
        return int(self._store.add(f"{self._round}/{key}", amount))
