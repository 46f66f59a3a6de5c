"""Hooks that make a run slow, or let it fail, at a known place."""

import time
from pathlib import Path
from typing import Any

from typing_extensions import override

from mm_runner import Runner
from mm_runner.hooks import Hook


class SlowUntilHurried(Hook):
    """Takes its time in each step, until the work directory holds a file ``hurry``.

    It changes nothing else. Once training is under way it writes ``trains_RANK_of_WORLD_SIZE``.

    Args:
        seconds: Per step. Of few steps, there are enough for whatever is to happen meanwhile.
    """

    def __init__(self, seconds: float = 3.0) -> None:
        self._seconds = seconds

    @override
    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        """Say that it trains, and wait."""
        work_dir = Path(runner.work_dir)
        (work_dir / f"trains_{runner.rank}_of_{runner.world_size}").touch()
        if not (work_dir / "hurry").exists():
            time.sleep(self._seconds)


class FailOnRank(Hook):
    """Fails on one rank.

    Args:
        rank: On which.
        step: After this one of an epoch, from 0.
    """

    def __init__(self, rank: int, step: int) -> None:
        self._rank, self._step = rank, step

    @override
    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        """Fail, if it is time."""
        if (runner.rank, batch_idx) == (self._rank, self._step):
            raise RuntimeError("the rank that fails")
