"""A notice board that all ranks share before there is a process group: torch's store."""

import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from mm_dist._launchers import LaunchEnvironment
from mm_dist._process_group._store import is_kept_by_launcher, open_store
from mm_dist._rendezvous import restore_variables

_PAUSE_S = 0.05
# torch names its stores here, and does not say so to type checkers.
_stores: Any = dist


class Board:
    """Notes that ranks leave for each other; asking for one that is not there does not block.

    Nothing waits inside the store: after a wait that timed out, stores before torch 2.1 give
    wrong answers.

    Args:
        store: Where the notes are kept. Defaults to this process, for one that is alone.
    """

    def __init__(self, store: Any = None) -> None:
        self._store = _stores.HashStore() if store is None else store

    def post(self, name: str, value: Any) -> None:
        """Leave a note, once."""
        self._store.set(name, json.dumps(value))
        self._store.add(f"{name}/there", 1)

    def find(self, name: str) -> Any | None:
        """Return a note, ``None`` if it is not there (yet)."""
        if self._store.add(f"{name}/there", 0) == 0:
            return None
        return json.loads(self._store.get(name))

    def wait(self, name: str, limit_s: float) -> Any | None:
        """Return a note as soon as it is there, ``None`` if the time is over."""
        end = time.monotonic() + limit_s
        while True:
            found = self.find(name)
            if found is not None or time.monotonic() >= end:
                return found
            time.sleep(_PAUSE_S)

    def collect(self, name: str, ranks: Iterable[int], limit_s: float) -> dict[int, Any]:
        """Return the notes ``name/RANK`` that are there in time."""
        end = time.monotonic() + limit_s
        found: dict[int, Any] = {}
        awaited = list(ranks)
        while awaited:
            found |= {rank: self.find(f"{name}/{rank}") for rank in awaited}
            awaited = [rank for rank in awaited if found[rank] is None]
            if time.monotonic() >= end:
                break
            time.sleep(_PAUSE_S if awaited else 0)
        return {rank: note for rank, note in sorted(found.items()) if note is not None}


def open_board(environment: LaunchEnvironment, limit_s: float) -> Board:
    """Return the board that this rank shares with the others of the job.

    Under torchrun the launcher keeps the store, else rank 0 does.

    Raises:
        LaunchError: If it cannot be opened; the message names the address.
    """
    return Board(_stores.PrefixStore("mm_dist_check", open_store(environment, limit_s)))


@contextmanager
def meeting_at_store() -> Iterator[None]:
    """Let ``init_dist`` meet in the store that rank 0 keeps already, as if a launcher did.

    What the launchers of torch tell their ranks says so.
    """
    added = {"TORCHELASTIC_USE_AGENT_STORE": str(True), "TORCHELASTIC_RESTART_COUNT": "0"}
    missing = {} if is_kept_by_launcher() else added
    former = {name: os.environ.get(name) for name in missing}
    os.environ.update(missing)
    try:
        yield
    finally:
        restore_variables(former)
