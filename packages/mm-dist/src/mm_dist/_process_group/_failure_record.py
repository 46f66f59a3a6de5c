"""Which rank failed first: one record for all ranks, kept in the store."""

import json
import os
import socket
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from mm_dist._dist_info import DistInfo
from mm_dist._process_group._error_line import shorten_error
from mm_dist._process_group._store import StoreAddress

# Not in a prefix store: those of older torch crash in compare_set.
_FAILED, _LEFT = "first_failure", "first_to_leave"
_NUM_READERS, _NUM_LEAVING, _NUM_GONE = "num_readers", "num_leaving", "num_gone"
_PROCESSES = "processes"
_ABSENT = "absent"
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
    """How a rank's part in the group ended.

    Attributes:
        rank: Its number.
        world_size: How many ranks there are.
        error: Type and message of its exception, or its exit status, in one line; empty if it left
            without one.
        wait: Whom it waited for in vain, in one sentence; empty if that is not what ended it.
        host: Its machine.
        time: When, in seconds since 1970, by that machine's clock.
    """

    rank: int
    world_size: int
    error: str
    wait: str = ""
    host: str = field(default_factory=socket.gethostname)
    time: float = field(default_factory=time.time)

    def describe(self) -> str:
        """Return who and what, as in ``rank 1 of 4 on host n2 failed: ValueError: boom``."""
        what = f"failed: {self.error}" if self.error else "had left the group"
        return f"{self.who()} {what}{f' - {self.wait}' if self.wait else ''}"

    def who(self) -> str:
        """Return who, as in ``rank 1 of 4 on host n2``."""
        return f"rank {self.rank} of {self.world_size} on host {self.host}"


def describe_error(error: BaseException) -> str:
    """Return type and message of an exception in one line.

    Example:
        >>> describe_error(ValueError("boom"))
        'ValueError: boom'
    """
    text = "".join(traceback.format_exception_only(type(error), error))
    # A syntax error begins with the place, and ends with what is wrong.
    is_placed = isinstance(error, SyntaxError)
    return shorten_error(text.strip().splitlines()[-1] if is_placed else text)


@dataclass(frozen=True)
class Answer:
    """What the store said.

    Attributes:
        first: The record of another rank, if there is one.
        is_store_there: Whether there was an answer at all.
    """

    first: FailureRecord | None
    is_store_there: bool


class FailureBoard:
    """The records of a job, reached by a short connection of its own.

    Not by the connection of the group: another thread may be waiting in it.

    Args:
        address: Where the store is; ``None`` where the ranks met without one.
        info: This process's place.
        number: Of the group among those of the job; what others left in it says nothing here.
    """

    def __init__(self, address: StoreAddress | None, info: DistInfo, number: int) -> None:
        self._address = address
        self._info = info
        self._number = number

    def exchange(
        self, own: FailureRecord, *, is_consequence: bool, limit_s: float = _ANSWER_S
    ) -> Answer:
        """Leave this rank's record, unless it only follows from another's; return the first.

        A record of a rank that left without an error is returned only to a rank that lost it.

        Args:
            own: This rank's record.
            is_consequence: Whether it only follows from another's.
            limit_s: How long the store may take.
        """

        def ask(store: Any) -> Answer:
            first = self._find_first(store) if is_consequence else self._post(store, own)
            store.add(self._key(_NUM_READERS), 1)
            is_other = first is not None and first.rank != own.rank
            return Answer(first if is_other else None, is_store_there=True)

        return self._visit(ask, limit_s) or Answer(None, is_store_there=False)

    def enter(self, store: Any) -> None:
        """Note which process this rank is, for the ranks of its machine to see whether it lives.

        Args:
            store: The one that the ranks meet in, where rank 0 keeps it.
        """
        key = f"{self._key(_PROCESSES)}/{_name_machine()}"
        number = store.add(key, 1)
        store.set(f"{key}/{number}", json.dumps([self._info.rank, os.getpid()]))

    def leave(self, limit_s: float, status: int = 0) -> bool:
        """Note that this rank leaves without an exception; return whether all do within the limit.

        Without a limit it asks nobody, and the answer is no.
        """
        error = f"exit status {status}" if status else ""
        own = FailureRecord(self._info.rank, self._info.world_size, error)

        def note(store: Any) -> bool:
            store.compare_set(self._key(_LEFT), "", json.dumps(asdict(own)))
            store.add(self._key(_NUM_LEAVING), 1)
            return self._wait_for(store, _NUM_LEAVING, limit_s)

        return self._visit(note, _ANSWER_S + limit_s) is True

    def say_gone(self, limit_s: float) -> None:
        """Note that this rank has left; wait until all have, or the limit is over.

        Without a limit that is the last word of this rank: the store may end as soon as all have
        said it, and whoever asked another question would have torch complain on the console.
        """

        def note(store: Any) -> bool:
            store.add(self._key(_NUM_GONE), 1)
            return self._wait_for(store, _NUM_GONE, limit_s)

        self._visit(note, _ANSWER_S + limit_s)

    def clear(self) -> None:
        """Forget what ranks of a former attempt left in a store that outlives them."""

        def forget(store: Any) -> bool:
            for name in (_FAILED, _LEFT, _NUM_READERS, _NUM_LEAVING, _NUM_GONE):
                store.delete_key(self._key(name))
            return True

        self._visit(forget, _ANSWER_S)

    def wait_for_readers(self) -> None:
        """Wait a moment, so that the other ranks can read what happened, before the store ends."""
        wait_s = _READ_GRACE_S
        self._visit(lambda store: self._wait_for(store, _NUM_READERS, wait_s), _ANSWER_S)

    def _post(self, store: Any, record: FailureRecord) -> FailureRecord | None:
        return _read(store.compare_set(self._key(_FAILED), "", json.dumps(asdict(record))))

    def _find_first(self, store: Any) -> FailureRecord | None:
        """Return who ended first; if nobody says so, a process of this machine that is gone."""
        processes = self._read_processes(store)
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

    def _read_processes(self, store: Any) -> dict[int, int]:
        """Return the processes of this machine by rank; of a rank that came twice, the newer."""
        key = f"{self._key(_PROCESSES)}/{_name_machine()}"
        numbers = range(1, store.add(key, 0) + 1)
        return dict(json.loads(store.get(f"{key}/{number}")) for number in numbers)

    def _key(self, name: str) -> str:
        return f"mm_dist/{self._number}/{name}"

    def _wait_for(self, store: Any, name: str, limit_s: float) -> bool:
        """Wait until all ranks have counted; one that failed will not."""
        if not limit_s:
            return False
        end = time.monotonic() + limit_s
        while store.add(self._key(name), 0) < self._info.world_size:
            is_failed = _look(store, self._key(_FAILED)) is not None
            if time.monotonic() >= end or (is_failed and name != _NUM_READERS):
                return False
            time.sleep(_PAUSE_S)
        return True

    def _visit(self, action: Callable[[Any], _Result], limit_s: float) -> _Result | None:
        """Return what ``action`` does with the store, ``None`` if that takes longer than the limit.

        In a thread: torch's store waits without a limit for the answer of a rank 0 that is frozen,
        or that a cut link keeps away.
        """
        address, outcome = self._address, list[_Result]()
        if address is None:
            return None

        def visit() -> None:
            store = address.connect()
            if store is not None:
                # It ended in between, or another program answers.
                with suppress(RuntimeError, ValueError, TypeError):
                    outcome.append(action(store))

        thread = threading.Thread(target=visit, name="mm_dist-visit", daemon=True)
        thread.start()
        thread.join(limit_s)
        return outcome[0] if outcome else None


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
    """Return whether a process has ended, as far as the system tells; its parent may not know."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return Path("/proc/self/stat").exists()
    return state in ("Z", "X")
