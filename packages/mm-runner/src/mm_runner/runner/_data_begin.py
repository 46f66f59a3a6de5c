"""Where a dataset that keeps its own place stood as the first training began."""

from __future__ import annotations

import copy
import pickle
from typing import Any

__all__ = ["DataBegin"]


class DataBegin:
    """Lets each training of a Runner begin its data where the first one did.

    An iterable dataset with ``state_dict`` would go on where the training before has left it, as
    one that failed within an epoch does. Where somebody has set it elsewhere since, it begins.
    """

    def __init__(self) -> None:
        self._dataset: Any = None
        self._first: Any = None
        self._left: bytes | None = None

    def begin(self, loop: Any, *, is_resuming: bool) -> None:
        """Put the data of a training loop, before its first step, where they are to begin.

        Args:
            loop: The training loop.
            is_resuming: Whether they go on from a checkpoint, which says where they are.
        """
        dataset = getattr(getattr(loop, "batches", None), "stateful_dataset", None)
        is_left_alone = self._left is not None and self._left == _pickled(_state_of(dataset))
        if dataset is self._dataset and is_left_alone:
            if not is_resuming:
                dataset.load_state_dict(copy.deepcopy(self._first))
        else:
            self._dataset, self._first = dataset, _state_of(dataset)
        self._left = None

    def end(self) -> None:
        """Note where the training, however it ended, has left its data."""
        if self._first is not None:
            self._left = _pickled(_state_of(self._dataset))


def _state_of(dataset: Any) -> Any:
    """Return a copy of a dataset's state, ``None`` if it has none, or none yet, or none to copy."""
    try:
        return None if dataset is None else copy.deepcopy(dataset.state_dict())
    except Exception:  # noqa: BLE001 - a dataset of the user's may know none before its first pass
        return None


def _pickled(state: Any) -> bytes | None:
    try:
        return None if state is None else pickle.dumps(state)
    except Exception:  # noqa: BLE001 - what it holds may raise anything
        return None
