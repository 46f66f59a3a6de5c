"""Files at the two ends of a connection, whose contents travel in chunks."""

import io
from collections.abc import Callable
from pickle import PickleBuffer
from typing import Any, Protocol

CHUNK_BYTES = 32 * 2**20


class WritableFile(Protocol):
    """What a pickler writes to."""

    def write(self, data: Any, /) -> Any:
        """Write all of the data."""


def is_little(size: int, count: int) -> bool:
    """Return whether so many pieces of that size fit in a chunk."""
    return size * count <= CHUNK_BYTES


class Outbox:
    """A file to write to, which holds one chunk and passes on what exceeds it.

    Args:
        pass_on: Called with a full chunk as soon as more is written.
    """

    def __init__(self, pass_on: Callable[[bytearray], None]) -> None:
        self._pass_on = pass_on
        self.chunk = bytearray()

    def write(self, data: bytes | bytearray | PickleBuffer) -> int:
        """Take all of the data."""
        view = PickleBuffer(data).raw()  # as bytes, whatever its items are
        size = len(view)
        while len(view) > 0:
            if len(self.chunk) == CHUNK_BYTES:
                self._pass_on(self.chunk)
                self.chunk = bytearray()
            room = CHUNK_BYTES - len(self.chunk)
            self.chunk += view[:room]
            view = view[room:]
        return size


class Inbox(io.RawIOBase):
    """A file to read from, which fetches the next chunk when the last one was read.

    Args:
        fetch: Returns the next chunk, an empty one at the end.
    """

    def __init__(self, fetch: Callable[[], bytearray]) -> None:
        super().__init__()
        self._fetch = fetch
        self._unread = memoryview(b"")

    def readable(self) -> bool:
        """Return that it can be read from."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill the buffer with what there is, at least a byte unless the end has come."""
        if len(self._unread) == 0:
            self._unread = memoryview(self._fetch())
        size = min(len(buffer), len(self._unread))
        buffer[:size] = self._unread[:size]
        self._unread = self._unread[size:]
        return size
