"""What became of the parts of a checkpoint, told between threads of different processes.

No collective: those are the main threads', in an order of their own.
"""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

import mm_dist
from mm_runner.errors import CheckpointWriteError

from ._store import OwnStore

if TYPE_CHECKING:
    import logging
    import threading

__all__ = ["PartOutcomes"]

_LOOK_S = 0.02
# How long to wait for others once this process ends by an error: they may be gone.
_PATIENCE_S = 30.0


class PartOutcomes:
    """Lets each process say whether its part is written, and the first one wait for all.

    Every process must construct it.

    Args:
        rank: Of this process.
        world_size: Number of processes.
        logger: Told if the processes cannot talk.

    Attributes:
        is_open: Whether they can; equal on all.
    """

    def __init__(self, rank: int, world_size: int, logger: logging.Logger) -> None:
        self._rank, self._world_size = rank, world_size
        self._num_saved = 0
        token = [uuid.uuid4().hex]
        mm_dist.broadcast_object_list(token)
        reached: Any = None
        try:
            self._store: OwnStore | None = OwnStore(f"parts/{token[0]}")
        except (OSError, RuntimeError, ValueError, AttributeError) as error:
            self._store, reached = None, str(error)
        failures = [one for one in mm_dist.all_gather_object(reached) if one]
        self.is_open = not failures
        if failures:
            logger.warning(
                f"The processes' store cannot be reached ({failures[0]}): async_save has no effect "
                "on checkpoints in parts, training waits for them."
            )

    def begin(self) -> int:
        """Return the number of the next checkpoint; every process must call this."""
        self._num_saved += 1
        return self._num_saved

    def report(self, number: int, failure: str) -> None:
        """Say that this process's part of a checkpoint is whole, or why not.

        Args:
            number: Of the checkpoint.
            failure: Empty if the part is whole.
        """
        assert self._store is not None
        self._store.write(f"{number}/{self._rank}", f"outcome:{failure}")
        self._store.count(f"{number}/done", 1)

    def wait(self, number: int, is_abandoned: threading.Event) -> None:
        """Wait until all have reported.

        Args:
            number: Of the checkpoint.
            is_abandoned: Set once others may be gone; then they are waited for no longer than
                30 s.

        Raises:
            CheckpointWriteError: If a part is not whole.
        """
        assert self._store is not None
        limit = None
        while self._store.count(f"{number}/done") < self._world_size:
            if is_abandoned.is_set():
                limit = limit or time.monotonic() + _PATIENCE_S
                if time.monotonic() > limit:
                    raise CheckpointWriteError("Other processes did not write their parts.")
            self._store.check()
            time.sleep(_LOOK_S)
        for rank in range(self._world_size):
            failure = self._store.read(f"{number}/{rank}").removeprefix("outcome:")
            if failure:
                raise CheckpointWriteError(failure)

    def close(self) -> None:
        """Disconnect."""
        if self._store is not None:
            self._store.close()
            self._store = None
