"""A notice board for the ranks of a run, in the store of the process group.

Who writes and who reads need not meet: no collective, so nobody waits for a rank that has nothing
to say.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import torch.distributed as dist

_numbers: Counter[str] = Counter()


class NoticeBoard:
    """What the ranks tell each other about one model; nothing without a group of several ranks.

    Ranks find the same board although some of them have compiled other models besides; models
    that look alike are compiled in one order on all ranks.

    Args:
        purpose: What the board is for.
        labels: Those of the model's regions.
    """

    def __init__(self, purpose: str, labels: Iterable[str]) -> None:
        digest = hashlib.sha256("\n".join(labels).encode()).hexdigest()[:16]
        name = f"mm_compile/{purpose}/{digest}"
        _numbers[name] += 1
        self._prefix = f"{name}/{_numbers[name]}"
        self._num_read = 0

    @property
    def is_first_rank(self) -> bool:
        """Whether this is rank 0, or the only one."""
        return _find_store() is None or dist.get_rank() == 0

    def post(self, notice: dict[str, Any]) -> None:
        """Tell the other ranks something that JSON can hold."""
        store = _find_store()
        if store is not None:
            ticket = store.add(f"{self._prefix}/tickets", 1)
            store.set(f"{self._prefix}/{ticket}", json.dumps({**notice, "rank": dist.get_rank()}))

    def unread(self) -> Iterator[dict[str, Any]]:
        """Yield what others have posted since, with their ``rank``; a message to the store."""
        store = _find_store()
        if store is None:
            return
        num_notices = store.add(f"{self._prefix}/tickets", 0)
        while self._num_read < num_notices:
            self._num_read += 1
            # Waits for a writer that has its ticket and is about to write.
            notice = json.loads(store.get(f"{self._prefix}/{self._num_read}"))
            if notice["rank"] != dist.get_rank():
                yield notice


def _find_store() -> Any:
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return None
    return dist.distributed_c10d._get_default_store()  # noqa: SLF001 - torch has no public way
