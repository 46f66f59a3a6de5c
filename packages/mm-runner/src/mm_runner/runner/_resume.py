"""Starting a run from a checkpoint: find, check, load, restore."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import mm_dist
from mm_runner._main_process import run_on_main
from mm_runner.checkpoint import (
    check_resumable,
    latest_readable,
    load_checkpoint_file,
    renamed,
)
from mm_runner.errors import CheckpointError, ConfigError

from ._data_position import check_world_size
from ._sharded import as_sharded
from ._state import restore_weights

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Sequence

    from ._runner import Runner

__all__ = [
    "Found",
    "StartingPoint",
    "load_or_resume",
    "load_weights_of",
    "refuse_url",
    "resume_later",
]

# Of a sharded model the main process hands these out, tensor by tensor.
_HANDED_OUT = ("state_dict", "optimizer", "ema_state_dict")


class Found(NamedTuple):
    """A checkpoint that was read."""

    path: Path
    content: dict[str, Any]


class StartingPoint:
    """The checkpoint that a run begins with, read once and loaded once.

    Args:
        load_from: A file, or ``None``.
        resume: Continue from it, or from the newest readable one in the work directory.
        leave_out: Parts of the state that start anew.

    Raises:
        ConfigError: If ``load_from`` is a URL.
    """

    def __init__(
        self, load_from: str | None, *, resume: bool, leave_out: Collection[str] = ()
    ) -> None:
        refuse_url(load_from)
        self.load_from, self.resume, self.leave_out = load_from, resume, leave_out
        self._found: Found | None = None
        self._is_read = self._is_taken = False

    def find(self, runner: Runner) -> Found | None:
        """Read the checkpoint, unless that is done; ``None`` to begin afresh.

        The seed of a run that resumes becomes that of the checkpoint, before data are built.

        Raises:
            CheckpointError: On all processes, if none can be read.
        """
        if self._is_read:
            return self._found
        self._found, self._is_read = _find(runner, self.load_from, resume=self.resume), True
        if self._found is not None and self.resume:
            check_world_size(runner, self._found.content)
            seed = self._found.content.get("meta", {}).get("seed")
            runner.randomness.take_over(seed, runner.logger)
        return self._found

    def take(self, runner: Runner, *, for_training: bool) -> Found | None:
        """Return the checkpoint to load now, ``None`` if it was loaded or there is none.

        An evaluation takes the weights only; a training that resumes follows it all the same.
        """
        if self._is_taken:
            return None
        found = self.find(runner)
        if for_training or not self.resume:
            self._is_taken, self._found = True, None
        return found


def load_or_resume(runner: Runner, start: StartingPoint) -> None:
    """Load the checkpoint that a run begins with, once: a training that resumes restores all of it.

    Raises:
        CheckpointError: On all processes, if the file cannot be read, or does not fit.
    """
    found = start.take(runner, for_training=runner.is_training)
    runner.is_resuming = found is not None and start.resume and runner.is_training
    if found is None:
        return
    if not runner.is_resuming:
        runner.logger.info(f"Loading {found.path}.")
        _load(runner, found.content, strict=start.resume)
        return
    runner.logger.info(f"Resuming from {found.path}.")
    runner.call_hook("after_load_checkpoint", checkpoint=found.content)
    runner.state.restore(found.content, leave_out=start.leave_out)
    runner.logger.info(f"Resumed after epoch {runner.epoch}, step {runner.iter}.")


def load_weights_of(
    runner: Runner,
    filename: str | Path,
    map_location: Any = None,  # noqa: ARG001 - MMEngine's signature
    strict: bool = False,  # noqa: FBT001, FBT002
    revise_keys: Sequence[tuple[str, str]] = ((r"^module\.", ""),),
) -> dict[str, Any]:
    """Load the weights of a checkpoint into the model now, and return the checkpoint.

    Args:
        runner: The run.
        filename: The file.
        map_location: Accepted for MMEngine's signature; weights go where the model is.
        strict: Whether an entry that does not fit is an error; else a warning lists them.
        revise_keys: Pairs of a regular expression and its replacement in the names.

    Raises:
        CheckpointError: On all processes, if it cannot be read, or nothing in it fits.
        ConfigError: If ``revise_keys`` holds something that is no such pair.
    """
    checkpoint = read_checkpoint(filename)
    weights = checkpoint.get("state_dict", checkpoint)
    revised: dict[str, Any] = renamed(weights, lambda name: _revised(name, revise_keys))
    checkpoint = revised if weights is checkpoint else {**checkpoint, "state_dict": revised}
    _load(runner, checkpoint, strict=strict)
    runner.logger.info(f"Loaded {filename}.")
    return checkpoint


def resume_later(
    runner: Runner,
    filename: str | Path,
    resume_optimizer: bool = True,  # noqa: FBT001, FBT002 - MMEngine's signature
    resume_param_scheduler: bool = True,  # noqa: FBT001, FBT002
    map_location: Any = None,  # noqa: ARG001
) -> StartingPoint:
    """Load the weights of a checkpoint now, and return the start of a training from it.

    Raises:
        CheckpointError: On all processes, if the file cannot be read, or does not fit.
        ConfigError: If training is under way.
    """
    if runner.is_training:
        raise ConfigError(
            f"resume({str(filename)!r}) was called while training is under way, whose data and "
            "random numbers cannot go elsewhere. Call it before train(), or take the weights "
            "alone by load_checkpoint()."
        )
    parts = {"optimizer": resume_optimizer, "param_schedulers": resume_param_scheduler}
    leave_out = [name for name, is_resumed in parts.items() if not is_resumed]
    start = StartingPoint(str(filename), resume=True, leave_out=leave_out)
    found = start.find(runner)
    assert found is not None
    _load(runner, found.content, strict=True)
    return start


def _load(runner: Runner, checkpoint: dict[str, Any], *, strict: bool) -> None:
    runner.call_hook("after_load_checkpoint", checkpoint=checkpoint)
    restore_weights(runner, checkpoint, strict=strict)
    meta = checkpoint.get("meta")
    counts = meta if isinstance(meta, dict) else {}
    runner.loaded_progress = {
        name: counts[name] for name in ("epoch", "iter") if isinstance(counts.get(name), int)
    }


def refuse_url(load_from: str | None) -> None:
    """Refuse a checkpoint that would have to be downloaded."""
    if load_from is not None and "://" in str(load_from):
        raise ConfigError(
            f"load_from: {load_from!r} was given; checkpoints are read from the file system. "
            "Download it with torch.hub.download_url_to_file(url, path), let 'mm-runner "
            "convert' read it if MMEngine wrote it, and give the path."
        )


def _find(runner: Runner, load_from: str | None, *, resume: bool) -> Found | None:
    # The main process chooses, so that all resume from the same file, and keeps what it has read.
    read: dict[Path, dict[str, Any]] = {}

    def choose() -> Path | None:
        if load_from is not None:
            read[Path(load_from)] = load_checkpoint_file(load_from)
            if resume:
                check_resumable(read[Path(load_from)], Path(load_from))
        elif resume:
            read.update(filter(None, [latest_readable(runner.work_dir, runner.logger.warning)]))
        return next(iter(read), None)

    path = run_on_main(choose)
    if path is not None:
        is_sharded = as_sharded(runner.model) is not None
        return Found(path, read_checkpoint(path, read.get(path), outline=is_sharded))
    if resume:
        runner.logger.info(f"resume: {runner.work_dir} has no checkpoint; training from the start.")
    return None


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
            # What a process continues with must not depend on a file that is removed one day.
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


def _revised(name: str, revise_keys: Sequence[tuple[str, str]]) -> str:
    for pair in revise_keys:
        try:
            pattern, replacement = pair
            name = re.sub(pattern, replacement, name)
        except (TypeError, ValueError, re.error) as error:
            raise ConfigError(
                f"revise_keys: {pair!r} was given ({error}); a pair of a regular expression and "
                "its replacement is needed."
            ) from error
    return name
