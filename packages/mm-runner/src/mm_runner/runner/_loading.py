"""Which checkpoint a run starts from, and taking its state from it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mm_runner._main_process import run_on_main
from mm_runner.checkpoint import latest_readable, load_checkpoint_file

from ._restoring import restore_training, restore_weights

if TYPE_CHECKING:
    import logging

    from mm_runner.runner import Runner

    from ._seed import RunSeed

__all__ = ["StartingPoint", "find_checkpoint"]


class StartingPoint:
    """What a run starts from, read once.

    Args:
        load_from: A checkpoint, or ``None``.
        seed: Of the run; becomes the checkpoint's when resuming.
        resume: Whether to go on from it, or from the newest one in the work directory.
    """

    def __init__(self, load_from: str | None, seed: RunSeed, *, resume: bool) -> None:
        self._load_from, self._seed, self._resume = load_from, seed, resume
        self._is_read = False

    def read(self, runner: Runner, *, training: bool) -> dict[str, Any] | None:
        """Read what is to be loaded, before anything depends on the seed in it.

        Args:
            runner: The run.
            training: Whether training is to begin: an evaluation takes the weights only.

        Returns:
            The checkpoint, or ``None`` to start afresh.

        Raises:
            CheckpointError: On all processes, if none can be read.
        """
        if self._is_read:
            return None
        # After an evaluation the training has still to be resumed.
        self._is_read = training or not self._resume
        found = find_checkpoint(
            self._load_from, runner.work_dir, runner.logger, resume=self._resume
        )
        if found is None:
            return None
        path, checkpoint = found
        runner.is_resuming = self._resume and training
        runner.logger.info(f"{'Resuming from' if runner.is_resuming else 'Loading'} {path}.")
        if runner.is_resuming:
            self._seed.take_over(checkpoint.get("meta", {}).get("seed"), runner.logger)
        return checkpoint

    def apply(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        """Give the model its weights, and when resuming the rest of the run its state.

        Raises:
            CheckpointError: If nothing fits the model, or when resuming, not everything does.
        """
        runner.call_hook("after_load_checkpoint", checkpoint=checkpoint)
        restore_weights(runner, checkpoint, strict=runner.is_resuming)
        if runner.is_resuming:
            restore_training(runner, checkpoint, self._seed)
            runner.logger.info(f"Going on after epoch {runner.epoch}, step {runner.iter}.")


def find_checkpoint(
    load_from: str | None, work_dir: Path, logger: logging.Logger, *, resume: bool
) -> tuple[Path, dict[str, Any]] | None:
    """Find and read the checkpoint to start from.

    Args:
        load_from: A file, or ``None``.
        work_dir: Where to look for the newest one when resuming without ``load_from``.
        logger: Told what was passed over.
        resume: Whether to look there at all.

    Returns:
        The file and its content, or ``None`` to start afresh.

    Raises:
        CheckpointError: On all processes, if none can be read.
    """
    # The main process chooses, so that all resume from the same file, and keeps what it has read.
    read: dict[Path, dict[str, Any]] = {}

    def choose() -> Path | None:
        if load_from is not None:
            read[Path(load_from)] = load_checkpoint_file(load_from)
        elif resume:
            read.update(filter(None, [latest_readable(work_dir, logger.warning)]))
        return next(iter(read), None)

    path = run_on_main(choose)
    if path is None:
        if resume:
            logger.info(f"resume: {work_dir} has no checkpoint; training from the start.")
        return None
    return path, read.get(path) or load_checkpoint_file(path)
