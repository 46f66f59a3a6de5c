"""Notes that the ranks of a run leave for each other in the store of the process group.

A collective could not do this: compiling fails on one rank in the middle of a step, while the
others neither know nor wait. A rank writes a note, the others read it when a later step begins.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch.distributed as dist

from ._failure import Failure
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


class SharedFailures:
    """Makes all ranks run a region eagerly soon after one of them had to.

    Results are right meanwhile, since compiled and eager code compute the same.

    Args:
        apply: Called as ``apply(index, failure)`` for each failure of another rank.
        labels: The labels of the model's regions.
    """

    def __init__(self, apply: Callable[[int, Failure], None], labels: Iterable[str]) -> None:
        self._apply = apply
        self._notes = Notes("failures", labels)
        self._num_steps = 0

    def share(self, index: int, failure: Failure) -> None:
        """Let the other ranks know that region ``index`` runs eagerly here."""
        self._notes.write({"index": index, "reason": str(failure)})

    def apply_new(self) -> None:
        """Apply the failures of other ranks; called once a step."""
        self._num_steps += 1
        if reads_in(self._num_steps):
            for note in self._notes.read():
                failure = Failure(f"so does rank {note['rank']}: {note['reason']}")
                self._apply(note["index"], failure)
