"""Exchange what the ranks write, one after the other, in chunks and in lock step.

All ranks follow the same sequence. At the opening each tells how much it has written, and whether
that is all. Then the ranks take turns: those with little to send share one, each with more than a
chunk has one of its own. After every turn, and between the chunks of a long one, all ranks meet in
a tiny collective that says what comes next or who failed. So no rank holds more than a chunk that
is not its own, none waits longer than a chunk takes, and an error on one of them reaches all.
"""

import io
from collections.abc import Callable, Iterator
from typing import IO, Any, Generic, TypeVar
from zlib import crc32

from mm_dist._collectives._check import compare_calls
from mm_dist._collectives._failure import raise_failure
from mm_dist._collectives._object_wire import ObjectWire
from mm_dist._collectives._stream import Inbox, Outbox, is_little
from mm_dist._collectives._turns import Turn, arrange_turns

_Loaded = TypeVar("_Loaded")


class Exchange(Generic[_Loaded]):
    """One exchange among the ranks of a group; it can run once.

    Args:
        call: The collective and its arguments, equal on all ranks.
        load: Reads from a file what one other rank has written.
        receiver: Number within the group of the only rank that reads. Defaults to all.
        group: Ranks that take part. Defaults to all.
    """

    def __init__(
        self,
        call: str,
        load: Callable[[IO[bytes]], _Loaded],
        receiver: int | None = None,
        group: Any = None,
    ) -> None:
        self._call = call
        self._load = load
        self._receiver = receiver
        self._wire = ObjectWire(group)
        self._outbox = Outbox(self._pass_on)
        self._turns: Iterator[Turn] | None = None
        self._loaded: dict[int, _Loaded] = {}
        self._is_broken = False

    def run(self, dump: Callable[[Outbox], None] | None) -> dict[int, _Loaded]:
        """Send what ``dump`` writes, and read what the others write; all ranks must come here.

        Args:
            dump: Writes to a file; ``None`` if this rank has nothing to send.

        Returns:
            By number within the group what was read; what this rank wrote itself is left out.

        Raises:
            CollectiveError: If writing or reading failed on any rank.
        """
        error = None
        try:
            if dump is not None:
                dump(self._outbox)
        except Exception as caught:
            if self._is_broken:
                raise
            error = caught
        if self._turns is None:
            turns = self._open(len(self._outbox.chunk), error=error)
        else:
            turns = self._turns
            self._pass_last(error)
        for turn in turns:
            self._take(turn)
        return self._loaded

    def _open(
        self, size: int, *, has_more: bool = False, error: Exception | None = None
    ) -> Iterator[Turn]:
        """Tell the others how this rank begins, and find out whose turn it is when."""
        self._is_broken = True  # until the ranks have understood each other
        own = [size, int(has_more), int(error is not None), crc32(self._call.encode())]
        rows = self._wire.gather_numbers(own)
        sizes, are_long, have_failed, calls = zip(*rows, strict=True)
        if len(set(calls)) > 1:
            compare_calls(self._wire, self._call)
        if any(have_failed):
            raise_failure(self._wire, self._call, have_failed.index(1), error)
        self._is_broken = False
        self._turns = iter(arrange_turns(sizes, are_long))
        return self._turns

    def _pass_on(self, chunk: bytearray) -> None:
        """Send a full chunk, which is followed by more, when it is this rank's turn."""
        if self._turns is None:
            for turn in self._open(len(chunk), has_more=True):
                if turn.is_long and self._wire.index in turn.sizes:
                    break
                self._take(turn)
        else:
            self._meet(size=len(chunk))
        self._pass(self._wire.index, len(chunk), chunk)

    def _pass_last(self, error: Exception | None) -> None:
        """Send the end of a long stream."""
        chunk = self._outbox.chunk
        self._meet(error, len(chunk))
        self._pass(self._wire.index, len(chunk), chunk)
        self._meet()

    def _take(self, turn: Turn) -> None:
        """Take part in a turn, unless it is a long one of this rank's own."""
        if not turn.is_long:
            self._take_short(turn)
            return
        ((source, size),) = turn.sizes.items()
        if self._receiver in (None, self._wire.index):
            self._read_long(source, size)
        else:
            while size > 0:
                size = self._meet()

    def _take_short(self, turn: Turn) -> None:
        error = None
        for source, chunk in self._pass_all(turn):
            if error is not None:
                continue  # The others still have to be received.
            try:
                self._loaded[source] = self._load(io.BytesIO(chunk))
            except Exception as caught:  # noqa: BLE001 (raised on all ranks when they meet)
                error = caught
        self._meet(error)

    def _pass_all(self, turn: Turn) -> Iterator[tuple[int, bytearray]]:
        """Pass on the chunks of a short turn; yield those of other ranks where they arrive."""
        num_ranks, longest = len(self._wire.ranks), max(turn.sizes.values())
        are_all = self._receiver is None and len(turn.sizes) == num_ranks
        if are_all and is_little(longest, num_ranks):
            self._is_broken = True
            rows = self._wire.gather_equal(self._outbox.chunk.ljust(longest, b"\0"))
            self._is_broken = False
            yield from ((i, row) for i, row in enumerate(rows) if i != self._wire.index)
            return
        for source, size in turn.sizes.items():
            chunk = self._pass(source, size, self._outbox.chunk)
            if chunk is not None:
                yield source, chunk

    def _read_long(self, source: int, size: int) -> None:
        chunks = self._receive_chunks(source, size)
        error = None
        try:
            inbox = Inbox(lambda: next(chunks, bytearray()))
            self._loaded[source] = self._load(io.BufferedReader(inbox))
        except Exception as caught:
            if self._is_broken:
                raise
            error = caught
        if error is not None:
            self._meet(error)
        for _ in chunks:  # The end of the turn has still to be met.
            pass

    def _receive_chunks(self, source: int, size: int) -> Iterator[bytearray]:
        while size > 0:
            yield self._pass(source, size) or bytearray()
            size = self._meet()

    def _pass(self, source: int, size: int, own: bytearray | None = None) -> bytearray | None:
        """Pass on a chunk; return it where another rank's was received."""
        self._is_broken = True
        is_own = source == self._wire.index
        received = None
        if self._receiver is None:
            received = own if is_own and own is not None else bytearray(size)
            self._wire.broadcast(received, source)
        elif self._receiver == self._wire.index:
            received = self._wire.receive(size, source)
        elif is_own and own is not None:
            self._wire.send(own, self._receiver)
        self._is_broken = False
        return None if is_own else received

    def _meet(self, error: Exception | None = None, size: int = 0) -> int:
        """Return the size of the chunk that comes next in this turn, 0 at its end.

        Raises:
            CollectiveError: If a rank met the others with an error.
        """
        self._is_broken = True
        num_ranks = len(self._wire.ranks)
        code = 0 if error is None else num_ranks - self._wire.index
        greatest, next_size = self._wire.gather_maxima([code, size])
        if greatest:
            raise_failure(self._wire, self._call, num_ranks - greatest, error)
        self._is_broken = False
        return next_size
