"""Which step all processes do something after, agreed without a collective in the steps.

A process that wants something says so in the store. Every process has a thread that looks there now
and then. When it finds a wish, it first makes the main thread stop at the end of its step, and then
notes where that thread is: the main thread may be at that place or at the one after it, but no
further. One place after the furthest of all is thus a place that nobody has left; the first process
writes it down, and all go on to there. No process waits for another one's main thread meanwhile,
which may itself be in the middle of a step and wait for this process.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._store import OwnStore

__all__ = ["Agreement", "Clock", "Verdict"]

# How often a process looks, and how many of them may look in a second.
_INTERVAL_S, _MOST_LOOKS = 0.2, 1000
_PENDING_INTERVAL_S = 0.01
# Ending the thread, which may be talking to a store that is just ending too, or that does not
# answer because rank 0 is frozen: a process that fails must not hang for long.
_JOIN_S = 0.5


class Verdict(NamedTuple):
    """What all processes do.

    Args:
        place: After this many places.
        wish: The strongest of those that were uttered.
    """

    place: int
    wish: int


class Agreement:
    """The talks of one process with the others.

    Args:
        store: Common to all.
        rank: Of this process.
        world_size: Number of processes.
        place: Tells how many places this process's main thread has come to.
        on_pending: Called by the thread when the main thread has to stop.
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
        self._uttered: set[int] = set()
        self._is_pending = False
        self._verdict: Verdict | None = None
        self._lock = threading.Lock()
        self._is_decided = threading.Event()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="mm_runner-agree", daemon=True)
        self._thread.start()

    def wish(self, wish: int) -> None:
        """Say that all processes should do something; greater numbers win. Does not wait."""
        self._wishes.add(wish)

    def verdict(self, timeout_s: float) -> Verdict | None:
        """Return what was decided once there is something pending; ``None`` if it takes longer."""
        self._is_decided.wait(timeout_s)
        return self._verdict

    def close_round(self) -> None:
        """Go on to the next verdict; the main thread has done what the present one says."""
        with self._lock:
            done = self._verdict.wish if self._verdict is not None else 0
            # One by one: a signal may add another at any instant.
            for wish in range(done + 1):
                self._wishes.discard(wish)
            self._is_decided.clear()
            self._uttered, self._verdict, self._is_pending = set(), None, False
            self._round += 1

    def stop(self) -> None:
        """End the thread."""
        self._is_over.set()
        self._thread.join(_JOIN_S)
        if not self._thread.is_alive():
            self._store.close()

    def _watch(self) -> None:
        try:
            while not self._is_over.wait(self._pause()):
                self._store.check()
                with self._lock:
                    if not self._is_decided.is_set():
                        self._look()
        except (OSError, RuntimeError):
            return  # the store ended with another process; whoever waits gives up after a while

    def _pause(self) -> float:
        waits = self._is_pending and not self._is_decided.is_set()
        return _PENDING_INTERVAL_S if waits else self._interval_s

    def _look(self) -> None:
        for wish in sorted(self._wishes - self._uttered):
            self._count(f"wish/{wish}", 1)
            self._count("wishes", 1)
            self._uttered.add(wish)
        if not self._is_pending:
            if self._count("wishes") == 0:
                return
            self._is_pending = True
            self._on_pending()  # first, see above
            self._store.write(f"{self._round}/place/{self._rank}", str(self._place()))
            self._count("places", 1)
        if self._rank == 0 and self._count("places") == self._world_size:
            self._decide()
        if self._count("decided"):
            place, strongest = self._store.read(f"{self._round}/verdict").split()
            self._verdict = Verdict(int(place), int(strongest))
            self._is_decided.set()

    def _decide(self) -> None:
        places = [
            int(self._store.read(f"{self._round}/place/{rank}")) for rank in range(self._world_size)
        ]
        wishes = [wish for wish in range(1, 10) if self._count(f"wish/{wish}")]
        self._store.write(f"{self._round}/verdict", f"{max(places) + 1} {max(wishes)}")
        self._count("decided", 1)

    def _count(self, key: str, amount: int = 0) -> int:
        return self._store.count(f"{self._round}/{key}", amount)


class Clock:
    """Calls something whenever enough time has passed since the last :meth:`reset`.

    Args:
        seconds: How much time.
        act: Called by a thread.
    """

    def __init__(self, seconds: float, act: Callable[[], None]) -> None:
        self._seconds, self._act = seconds, act
        self._start = time.monotonic()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mm_runner-clock", daemon=True)
        self._thread.start()

    def reset(self) -> None:
        """Count from now."""
        self._start = time.monotonic()

    def stop(self) -> None:
        """End the thread."""
        self._is_over.set()
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        while not self._is_over.wait(max(self._start + self._seconds - time.monotonic(), 0.01)):
            if time.monotonic() >= self._start + self._seconds:
                self.reset()
                self._act()
