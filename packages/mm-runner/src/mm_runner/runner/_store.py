"""The ranks' store, over a connection of one's own."""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any

import torch.distributed as dist

__all__ = ["OwnStore"]

# torch's type information does not list these names, and a build may lack them.
_DIST: Any = dist
_TIMEOUT = timedelta(seconds=30)


class OwnStore:
    """Notes that all ranks of the default process group see.

    Not torch's connection to the store: the main thread may hold its lock while it waits in it for
    other ranks. Only ``set``, ``get`` and ``add`` are used, which every torch version has.

    Args:
        token: What the keys begin with; the same on all ranks, and never used before.

    Raises:
        OSError: If the store cannot be reached.
    """

    def __init__(self, token: str) -> None:
        store = _DIST.distributed_c10d._get_default_store()  # noqa: SLF001 - no public way
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        self._line: socket.socket | None = None
        if isinstance(store, _DIST.TCPStore):
            self._line = socket.create_connection((store.host, store.port), timeout=5.0)
            self._line.setblocking(False)  # noqa: FBT003
            store = _DIST.TCPStore(
                store.host, store.port, is_master=False, wait_for_workers=False, timeout=_TIMEOUT
            )
        self._store = _DIST.PrefixStore(f"mm_runner/{token}", store)

    def check(self) -> None:
        """Check that the store is still there; torch's client prints a C++ stack if it is not.

        Raises:
            ConnectionError: If it has ended.
        """
        if self._line is None:
            return
        try:
            # Nothing is ever said on this line. That it ends is a fact about the other side.
            is_over = self._line.recv(1) == b""
        except BlockingIOError:
            return
        if is_over:
            raise ConnectionError("the store has ended")

    def count(self, key: str, amount: int = 0) -> int:
        """Add to a number that begins with 0, and return it."""
        return int(self._store.add(key, amount))

    def write(self, key: str, text: str) -> None:
        """Write a note."""
        self._store.set(key, text)

    def read(self, key: str) -> str:
        """Read a note that is there; one that is not is waited for."""
        return str(self._store.get(key).decode())

    def close(self) -> None:
        """Disconnect."""
        if self._line is not None:
            self._line.close()
        self._store = None
