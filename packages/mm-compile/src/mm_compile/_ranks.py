"""Notes that rank 0 leaves for the other ranks in the store of the process group.

The other ranks read them when a later step begins; nobody waits, as in a collective.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import torch.distributed as dist

from ._torch_private import default_store

# Reading costs a message to the store: every step at first, when code is compiled, then seldom.
_READ_ALWAYS = 64
_READ_EVERY = 16
_numbers: Counter[str] = Counter()


def reads_in(step: int) -> bool:
    """Whether ranks read notes when step number ``step`` begins."""
    return step <= _READ_ALWAYS or step % _READ_EVERY == 0


class Notes:
    """Notes of the ranks about one model; nothing without several ranks.

    Ranks find the same notes although some have compiled other models too. Models that look alike
    must be compiled in the same order on all ranks.

    Args:
        purpose: What the notes are for.
        labels: The labels of the model's regions.
    """

    def __init__(self, purpose: str, labels: Iterable[str]) -> None:
        digest = hashlib.sha256("\n".join(labels).encode()).hexdigest()[:16]
        name = f"mm_compile/{purpose}/{digest}"
        _numbers[name] += 1
        self._prefix = f"{name}/{_numbers[name]}"
        self._num_read = 0

    @property
    def is_main_rank(self) -> bool:
        """Whether this is rank 0, or the only one."""
        return default_store() is None or dist.get_rank() == 0

    def write(self, note: dict[str, Any]) -> None:
        """Leave a note, made of JSON values."""
        store = default_store()
        if store is not None:
            number = store.add(f"{self._prefix}/count", 1)
            store.set(f"{self._prefix}/{number}", json.dumps({**note, "rank": dist.get_rank()}))

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield the new notes of other ranks, with their ``rank``."""
        store = default_store()
        if store is None:
            return
        num_notes = store.add(f"{self._prefix}/count", 0)
        while self._num_read < num_notes:
            self._num_read += 1
            # Waits for a writer that has its number and is about to write.
            note = json.loads(store.get(f"{self._prefix}/{self._num_read}"))
            if note["rank"] != dist.get_rank():
                yield note
