"""Which checkpoint a run starts from, and taking its state from it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import mm_dist
from mm_runner._main_process import run_on_main
from mm_runner.checkpoint import latest_readable, load_checkpoint_file
from mm_runner.data import DefaultSampler
from mm_runner.errors import CheckpointError, ConfigError

from ._restoring import restore_training, restore_weights

if TYPE_CHECKING:
    import logging
    import os

    from mm_runner.runner import Runner

    from ._seed import RunSeed

__all__ = ["StartingPoint", "find_checkpoint", "read_checkpoint"]


class StartingPoint:
    """What a run starts from, read once.

    Args:
        load_from: A checkpoint, or ``None``.
        seed: Of the run; becomes the checkpoint's when resuming.
        resume: Whether to go on from it, or from the newest one in the work directory.

    Raises:
        ConfigError: If ``load_from`` is a URL.
    """

    def __init__(self, load_from: str | None, seed: RunSeed, *, resume: bool) -> None:
        if load_from is not None and "://" in str(load_from):
            raise ConfigError(
                f"load_from: {load_from!r} was given; checkpoints are read from the file system. "
                "Download it with torch.hub.download_url_to_file(url, path), let 'mm-runner "
                "convert' read it if MMEngine wrote it, and give the path."
            )
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
        found = find_checkpoint(
            self._load_from, runner.work_dir, runner.logger, resume=self._resume
        )
        if found is None:
            self._is_read = training
            return None
        path, checkpoint = found
        runner.is_resuming = self._resume and training
        runner.logger.info(f"{'Resuming from' if runner.is_resuming else 'Loading'} {path}.")
        if runner.is_resuming:
            before = self._seed.value
            self._seed.take_over(checkpoint.get("meta", {}).get("seed"), runner.logger)
            _follow_seed(runner, before)
        return checkpoint

    def go_on(self, path: Path | None) -> None:
        """Let the next training of this process resume from ``path``, if this one has saved it."""
        if path is not None:
            self._load_from, self._resume, self._is_read = str(path), True, False

    def apply(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        """Give the model its weights, and when resuming the rest of the run its state.

        Raises:
            CheckpointError: If nothing fits the model, or when resuming, not everything does.
        """
        runner.call_hook("after_load_checkpoint", checkpoint=checkpoint)
        restore_weights(runner, checkpoint, strict=runner.is_resuming)
        # Not before: what failed meanwhile may be tried again. And after an evaluation the training
        # has still to be resumed.
        self._is_read = runner.is_training or not self._resume
        if runner.is_resuming:
            restore_training(runner, checkpoint, self._seed)
            runner.logger.info(f"Going on after epoch {runner.epoch}, step {runner.iter}.")


def read_checkpoint(
    path: str | os.PathLike[str], own: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Read a checkpoint on every process; every process must call this.

    Args:
        path: The file.
        own: What this process has read of it already.

    Raises:
        CheckpointError: On all processes, if one of them cannot read it.
    """
    failure = None
    try:
        own = load_checkpoint_file(path) if own is None else own
    except CheckpointError as error:
        failure = error
    texts = mm_dist.all_gather_object(failure and str(failure))
    if failure is not None:
        raise failure
    failed = [rank for rank, text in enumerate(texts) if text]
    if failed:
        raise CheckpointError(
            f"Process {failed[0]} cannot read the checkpoint: {texts[failed[0]]} Every process "
            "reads it: it has to lie where all machines find it."
        )
    assert own is not None
    return own


def _follow_seed(runner: Runner, before: int) -> None:
    """Let evaluation loops that were asked for already draw by the seed of the run, which changed.

    On some processes only they may have been: all must deal out the samples alike.
    """
    for loop in (runner.val_loop, runner.test_loop):
        sampler = getattr(getattr(loop, "dataloader", None), "sampler", None)
        if isinstance(sampler, DefaultSampler) and sampler.seed == before:
            sampler.seed = runner.seed


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
    return path, read_checkpoint(path, read.get(path))
