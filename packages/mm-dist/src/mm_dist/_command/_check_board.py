"""A notice board that all ranks share before there is a process group: torch's store."""

import json
import os
import socket
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from mm_dist._command._resolution import resolve_host
from mm_dist._errors import LaunchError
from mm_dist._launchers import LaunchEnvironment

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
    host, port = str(environment.master_addr), int(environment.master_port or 0)
    is_host = environment.rank == 0 and not is_kept_by_launcher()
    if not is_host:
        _await_host(environment.rank, resolve_host(host, min(limit_s, 10.0)), port, limit_s)
    try:
        store = _stores.TCPStore(
            host,
            port,
            environment.world_size,
            is_host,
            timeout=timedelta(seconds=limit_s),
            wait_for_workers=False,
        )
    except (RuntimeError, ValueError) as error:
        what = "cannot listen on" if is_host else "cannot use rank 0's store at"
        raise LaunchError(
            f"Rank {environment.rank} {what} {host}:{port}: {error} - check that the port is free "
            "for rank 0, or choose another one with MASTER_PORT."
        ) from error
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return Board(_stores.PrefixStore(f"mm_dist_check/{attempt}", store))


def _await_host(rank: int, address: str, port: int, limit_s: float) -> None:
    """Wait until somebody listens; torch would, too, and fill the console while it does."""
    end = time.monotonic() + limit_s
    while True:
        try:
            left = max(end - time.monotonic(), _PAUSE_S)
            socket.create_connection((address, port), timeout=left).close()
        except OSError as error:
            if time.monotonic() < end:
                time.sleep(_PAUSE_S)
                continue
            raise LaunchError(
                f"Rank {rank} cannot reach rank 0 at {address}:{port} within {limit_s:g} s: "
                f"{error} - check that rank 0 was started there, and that no firewall is between."
            ) from error
        return


def is_kept_by_launcher() -> bool:
    """Return whether torch's launcher keeps a store for the ranks."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)
