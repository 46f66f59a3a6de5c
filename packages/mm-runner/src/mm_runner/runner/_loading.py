"""Which checkpoint a run starts from, and taking its state from it."""

from __future__ import annotations

import copy
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mm_dist
from mm_runner._main_process import run_on_main
from mm_runner.checkpoint import check_resumable, latest_readable, load_checkpoint_file
from mm_runner.data import DefaultSampler
from mm_runner.errors import CheckpointError, ConfigError

from ._other_processes import check_world_size
from ._sharded_state import as_sharded

if TYPE_CHECKING:
    import logging
    import os
    from collections.abc import Iterator

    from mm_runner.runner import Runner

    from ._seed import RunSeed

__all__ = ["StartingPoint", "find_checkpoint", "read_checkpoint", "refuse_url"]

# Of a sharded model the main process hands these out, tensor by tensor.
_HANDED_OUT = ("state_dict", "optimizer", "ema_state_dict")


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
        refuse_url(load_from)
        self._load_from, self._seed, self._resume = load_from, seed, resume
        self._is_read = False
        # Of a training that resumes: read before anything is built with the seed in it.
        self._kept: tuple[Path, dict[str, Any]] | None = None
        self._applied: tuple[Path, dict[str, Any]] | None = None
        # While a training's load_or_resume runs; and whether it has resumed.
        self._is_beginning = self._has_resumed = False
        # Whether the optimizers, and the schedules, go on as well.
        self.resumes_optimizer = self.resumes_schedules = True
        # Whether the data go on, whatever resume_data says: of a stop that this process caught.
        self.keeps_data = False
        # Of load_checkpoint, while the run calls it.
        self.is_own_call = self.is_strict = False

    @property
    def load_from(self) -> str | None:
        """The checkpoint that was given to start from."""
        return self._load_from

    @property
    def is_fresh(self) -> bool:
        """Whether the next training begins at step 0, with given weights or not."""
        return not self._resume

    @property
    def is_applied(self) -> bool:
        """Whether a checkpoint that the run begins with is being taken in just now."""
        return self._applied is not None

    def settle_seed(self, runner: Runner) -> None:
        """Let the seed be that of the checkpoint that a training is to resume from, if it is.

        Raises:
            CheckpointError: On all processes, if none can be read.
        """
        if not self._resume or self._is_read or self._kept is not None:
            return
        found = self._find(runner)
        if found is not None:
            path, checkpoint = found
            runner.logger.info(f"Resuming from {path}.")
            check_world_size(runner, checkpoint)
            before = self._seed.value
            self._seed.take_over(checkpoint.get("meta", {}).get("seed"), runner.logger)
            _follow_seed(runner, before)
        self._kept = found

    def begin_training(self, runner: Runner) -> None:
        """Read what a training begins with, before anything of it is built.

        Raises:
            CheckpointError: On all processes, if none can be read.
        """
        if self._is_read:
            runner.is_resuming = False  # a training before did
            return
        if self._resume:
            self.settle_seed(runner)
        else:
            self._kept = self._find(runner)
            self._tell_loading(runner, self._kept)
        self._is_read = self._kept is None
        runner.is_resuming = self._resume and self._kept is not None

    @contextmanager
    def applying(self, runner: Runner) -> Iterator[Path | None]:
        """Let the block give the run what it begins with.

        Args:
            runner: The run. Outside of a training only the weights count, which the training that
                follows takes again if it resumes.

        Yields:
            The checkpoint's file, which :meth:`content` returns within the block; ``None`` to begin
            afresh, or if that is done already.
        """
        if self._is_read:
            yield None
            return
        if not runner.is_training:
            runner.is_resuming = False
            found = self._find(runner)
            self._tell_loading(runner, found)
        else:
            found, self._kept = self._kept, None
        with self._taking_in(found):
            yield found and found[0]
        # Not before: what failed meanwhile may be tried again. And after an evaluation the training
        # has still to be resumed.
        if found is not None:
            self._is_read = runner.is_training or not self._resume

    @contextmanager
    def beginning(self, runner: Runner) -> Iterator[None]:
        """Let the block, a training's ``load_or_resume``, choose what the training begins with.

        What it has not taken is dropped.
        """
        self._is_beginning, self._has_resumed = True, False
        try:
            yield
        finally:
            self._is_beginning, self._kept = False, None
        self._is_read = True
        runner.is_resuming = runner.is_resuming and self._has_resumed

    @contextmanager
    def applying_file(self, runner: Runner, path: str | os.PathLike[str]) -> Iterator[bool]:
        """Let the block give a training the state of a file, if there is yet time for that.

        Yields:
            Whether there is: while a training's ``load_or_resume`` runs.

        Raises:
            CheckpointError: On all processes, if it cannot be read.
            ConfigError: If another number of processes wrote it, and that is not allowed.
        """
        if self.is_applied or not self._is_beginning:
            self._has_resumed = self._has_resumed or self.is_applied
            yield self.is_applied
            return
        found = self._kept
        if found is None or not self._resume or found[0] != Path(path):
            found = self._find(runner, path, resume=True)
            assert found is not None
            check_world_size(runner, found[1])
            self.resumes_optimizer = self.resumes_schedules = True
            self.keeps_data = False
        runner.logger.info(f"Resuming from {path}.")
        self._kept, self._is_read = None, True
        runner.is_resuming = self._has_resumed = True
        with self._taking_in(found):
            yield True

    @contextmanager
    def calling_load_checkpoint(self, *, is_strict: bool) -> Iterator[None]:
        """Let ``load_checkpoint`` in the block know that the run calls it, and not a script.

        As arguments of that these would not reach it through an override without them.
        """
        self.is_own_call, self.is_strict = True, is_strict
        try:
            yield
        finally:
            self.is_own_call = self.is_strict = False

    @contextmanager
    def _taking_in(self, found: tuple[Path, dict[str, Any]] | None) -> Iterator[None]:
        self._applied = found
        try:
            yield
        finally:
            self._applied = None

    def content(self, path: str | os.PathLike[str]) -> dict[str, Any]:
        """Return what a checkpoint holds; every process must call this.

        Raises:
            CheckpointError: On all processes, if one of them cannot read it.
        """
        if self._applied is not None and Path(path) == self._applied[0]:
            return self._applied[1]
        return read_checkpoint(path)

    def go_on(
        self,
        path: Path | None,
        *,
        optimizer: bool = True,
        schedules: bool = True,
        keeps_data: bool = False,
    ) -> None:
        """Let the next training of this process resume from ``path``; ``None`` changes nothing.

        Args:
            path: What this process has saved, or was told to resume from.
            optimizer: Whether the optimizers go on as well.
            schedules: Whether the schedules do.
            keeps_data: Whether the data do, even if ``resume_data`` says that they begin anew.
        """
        if path is not None:
            self.keeps_data = keeps_data
            self._load_from, self._resume, self._is_read = str(path), True, False
            self._kept = None
            self.resumes_optimizer, self.resumes_schedules = optimizer, schedules

    def _find(
        self,
        runner: Runner,
        path: str | os.PathLike[str] | None = None,
        *,
        resume: bool | None = None,
    ) -> tuple[Path, dict[str, Any]] | None:
        return find_checkpoint(
            self._load_from if path is None else str(path),
            runner.work_dir,
            runner.logger,
            resume=self._resume if resume is None else resume,
            main_gives_tensors=as_sharded(runner.model) is not None,
        )

    def _tell_loading(self, runner: Runner, found: tuple[Path, dict[str, Any]] | None) -> None:
        if found is not None:
            runner.logger.info(f"Loading {found[0]}.")


def refuse_url(load_from: str | None) -> None:
    """Refuse a checkpoint that would have to be downloaded."""
    if load_from is not None and "://" in str(load_from):
        raise ConfigError(
            f"load_from: {load_from!r} was given; checkpoints are read from the file system. "
            "Download it with torch.hub.download_url_to_file(url, path), let 'mm-runner "
            "convert' read it if MMEngine wrote it, and give the path."
        )


def read_checkpoint(
    path: str | os.PathLike[str], own: dict[str, Any] | None = None, *, outline: bool = False
) -> dict[str, Any]:
    """Read a checkpoint on every process; every process must call this.

    Args:
        path: The file.
        own: What this process has read of it already.
        outline: Whether a process that has not read it needs no tensors.

    Raises:
        CheckpointError: On all processes, if one of them cannot read it.
    """
    failure = None
    try:
        if own is None:
            own = load_checkpoint_file(path, outline=outline)
            # What a process goes on with must not hang on a file that is removed one day.
            kept = _HANDED_OUT if outline else own
            own = {key: own[key] if key in kept else copy.deepcopy(own[key]) for key in own}
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
    for loop in (runner.built_loop("val"), runner.built_loop("test")):
        sampler = getattr(getattr(loop, "dataloader", None), "sampler", None)
        if isinstance(sampler, DefaultSampler) and sampler.seed == before:
            sampler.seed = runner.seed


def find_checkpoint(
    load_from: str | None,
    work_dir: Path,
    logger: logging.Logger,
    *,
    resume: bool,
    main_gives_tensors: bool = False,
) -> tuple[Path, dict[str, Any]] | None:
    """Find and read the checkpoint to start from.

    Args:
        load_from: A file, or ``None``.
        work_dir: Where to look for the newest one when resuming without ``load_from``.
        logger: Told what was passed over.
        resume: Whether to look there at all, and what is read must be enough to go on from.
        main_gives_tensors: Whether the main process hands tensors to the others. These then have an
            outline of them only, so that a machine holds the checkpoint in memory once.

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
            if resume:
                check_resumable(read[Path(load_from)], Path(load_from))
        elif resume:
            read.update(filter(None, [latest_readable(work_dir, logger.warning)]))
        return next(iter(read), None)

    path = run_on_main(choose)
    if path is None:
        if resume:
            logger.info(f"resume: {work_dir} has no checkpoint; training from the start.")
        return None
    return path, read_checkpoint(path, read.get(path), outline=main_gives_tensors)
