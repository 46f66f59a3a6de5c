"""Write a rank's results to a file one by one, and read them back."""

import pickle
from collections.abc import Sequence
from typing import Any

from mm_dist._collectives import _stream
from mm_dist._collectives._pickling import TensorPickler
from mm_dist._collectives._stream import WritableFile

# What follows the results: each of them is written as a tuple of one.
_END_OF_PART = ()
_END = None


class _Counter:
    """A file that counts what passes through it."""

    def __init__(self, file: WritableFile) -> None:
        self._file = file
        self.num_bytes = 0

    def write(self, data: pickle.PickleBuffer | bytes) -> int:
        size = pickle.PickleBuffer(data).raw().nbytes
        self.num_bytes += size
        self._file.write(data)
        return size


def dump_results(results: Sequence[Any], file: WritableFile) -> None:
    """Write results, in parts of about a chunk.

    Within a part, objects that several results share are written once. A pickler remembers, and
    so keeps alive, all that it has written; it forgets between parts.
    """
    counter = _Counter(file)
    pickler = TensorPickler(counter)
    for result in results:
        pickler.dump((result,))
        if counter.num_bytes >= _stream.CHUNK_BYTES:
            pickler.dump(_END_OF_PART)
            pickler.clear_memo()
            counter.num_bytes = 0
    pickler.dump(_END)


def load_results(file: Any) -> list[Any]:
    """Read what ``dump_results`` wrote."""
    results: list[Any] = []
    while True:
        unpickler = pickle.Unpickler(file)  # noqa: S301 (own ranks)
        while written := unpickler.load():
            results.append(written[0])
        if written is _END:
            return results
