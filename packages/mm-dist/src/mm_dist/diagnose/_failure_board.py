"""Which rank failed first: one record for all ranks, kept in the store."""

import json
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from mm_dist._rendezvous._store import StoreAddress, call_in_time, store_prefix
from mm_dist._state import DistInfo

# Not in a prefix store: those of older torch crash in compare_set.
_FAILED, _LEFT = "first_failure", "first_to_leave"
_NUM_READERS, _NUM_LEAVING, _NUM_GONE = "num_readers", "num_leaving", "num_gone"
_PROCESSES, _ABSENT = "processes", "absent"
_READ_GRACE_S, _PAUSE_S = 2.0, 0.02
# The connections of a process break a moment before the system shows that it has ended.
_END_GRACE_S = 1.0
# Longer than all that a store which answers at all takes: a name server may lose a message.
_ANSWER_S = 12.0
_Result = TypeVar("_Result")
NO_WORD = (
    "its process ended without a Python error: aborted in native code, as by gloo where the ranks' "
    "calls do not match (its own output says so; MM_DIST_DEBUG=1 names the call), or killed, by "
    "the scheduler or for want of memory"
)


@dataclass(frozen=True)
class FailureRecord:
    """How a rank's part in the group ended."""

    rank: int
    world_size: int
    error: str  # the exception in one line, empty if it left without one
    wait: str = ""  # which rank it waited for, if that ended it
    host: str = field(default_factory=socket.gethostname)

    def describe(self) -> str:
        """Return who and what, as in ``rank 1 of 4 on host n2 failed: ValueError: boom``."""
        what = f"failed: {self.error}" if self.error else "had left the group"
        return f"{self.name_rank()} {what}{f' - {self.wait}' if self.wait else ''}"

    def name_rank(self) -> str:
        """Return the rank and its machine, as in ``rank 1 of 4 on host n2``."""
        return f"rank {self.rank} of {self.world_size} on host {self.host}"


class FailureBoard:
    """The records of a job's group ``number``, reached by short connections.

    Not by the connection of the group: another thread may be waiting in it. ``address`` is None
    where the ranks met without a store.
    """

    def __init__(self, address: StoreAddress | None, info: DistInfo, number: int) -> None:
        self._address, self._info, self._prefix = address, info, store_prefix(number)

    def enter(self, store: Any) -> None:
        """Note which process this rank is, for the ranks of its machine to see whether it lives."""
        key = f"{self._key(_PROCESSES)}/{_name_machine()}"
        number = store.add(key, 1)
        store.set(f"{key}/{number}", json.dumps([self._info.rank, os.getpid()]))

    def exchange(
        self, own: FailureRecord, *, is_consequence: bool, limit_s: float | None = None
    ) -> tuple[FailureRecord | None, bool]:
        """Leave this rank's record, unless it only follows from another's."""

        def ask(store: Any) -> tuple[FailureRecord | None, bool]:
            first = self._find_first(store) if is_consequence else self._post(store, own)
            store.add(self._key(_NUM_READERS), 1)
            return (first if first is not None and first.rank != own.rank else None), True

        return self._visit(ask, limit_s or _ANSWER_S) or (None, False)

    def wait_for_readers(self) -> None:
        """Wait a moment, so that the other ranks can read what happened, before the store ends."""
        self._visit(lambda store: self._wait_for(store, _NUM_READERS, _READ_GRACE_S), _ANSWER_S)

    def leave(self, limit_s: float) -> bool:
        """Note that this rank leaves; return whether all do in time. A limit of 0 does not ask."""
        own = FailureRecord(self._info.rank, self._info.world_size, error="")

        def note(store: Any) -> bool:
            store.compare_set(self._key(_LEFT), "", json.dumps(asdict(own)))
            store.add(self._key(_NUM_LEAVING), 1)
            return self._wait_for(store, _NUM_LEAVING, limit_s)

        return self._visit(note, _ANSWER_S + limit_s) is True

    def confirm_left(self, limit_s: float) -> None:
        """Note that this rank has left; wait until all have, or the limit is over.

        Without a limit that is the last word of this rank: the store may end as soon as all have
        said it, and whoever asked another question would have torch complain on the console.
        """

        def note(store: Any) -> bool:
            store.add(self._key(_NUM_GONE), 1)
            return self._wait_for(store, _NUM_GONE, limit_s)

        self._visit(note, _ANSWER_S + limit_s)

    def _post(self, store: Any, record: FailureRecord) -> FailureRecord | None:
        return _read(store.compare_set(self._key(_FAILED), "", json.dumps(asdict(record))))

    def _find_first(self, store: Any) -> FailureRecord | None:
        """Return the first record; without one, that of a process of this machine that is gone."""
        key = f"{self._key(_PROCESSES)}/{_name_machine()}"
        numbers = range(1, store.add(key, 0) + 1)
        # Of a rank that came twice, the newer.
        processes = dict(json.loads(store.get(f"{key}/{number}")) for number in numbers)
        end = time.monotonic() + (_END_GRACE_S if processes else 0.0)
        while True:
            first = _look(store, self._key(_FAILED)) or _look(store, self._key(_LEFT))
            if first is not None:
                return first
            gone = next((rank for rank, pid in processes.items() if _is_gone(pid)), None)
            if gone is not None:
                return self._post(store, FailureRecord(gone, self._info.world_size, NO_WORD))
            if time.monotonic() >= end:
                return None
            time.sleep(_PAUSE_S)

    def _wait_for(self, store: Any, name: str, limit_s: float) -> bool:
        """Wait until all ranks have counted; one that failed will not."""
        end = time.monotonic() + limit_s
        while limit_s and store.add(self._key(name), 0) < self._info.world_size:
            is_failed = name != _NUM_READERS and _look(store, self._key(_FAILED)) is not None
            if time.monotonic() >= end or is_failed:
                return False
            time.sleep(_PAUSE_S)
        return limit_s > 0

    def _visit(self, action: Callable[[Any], _Result], limit_s: float) -> _Result | None:
        """Return what ``action`` does with the store, ``None`` if that takes longer than the limit.

        In a thread: torch's store waits without a limit for the answer of a rank 0 that is frozen,
        or that a cut link keeps away.
        """
        address = self._address

        def visit() -> _Result | None:
            store = None if address is None else address.connect()
            return None if store is None else action(store)

        return call_in_time(limit_s, visit)

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}"


def _read(value: bytes) -> FailureRecord | None:
    text = value.decode()
    return None if text in ("", _ABSENT) else FailureRecord(**json.loads(text))


def _look(store: Any, key: str) -> FailureRecord | None:
    # The one question that does not block where there is no such key, in all versions of torch.
    return _read(store.compare_set(key, _ABSENT, _ABSENT))


def _name_machine() -> str:
    # Containers may share a machine's name, and number their processes each for itself.
    with suppress(OSError):
        return f"{socket.gethostname()}/{Path('/proc/self/ns/pid').readlink()}"
    return socket.gethostname()


def _is_gone(pid: int) -> bool:
    """Return whether a process has ended, as far as the system shows."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return Path("/proc/self/stat").exists()
    return state in ("Z", "X")
