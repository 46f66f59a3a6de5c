"""Which checkpoint a run starts from, and taking its state from it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import mm_dist
from mm_runner.checkpoint import latest_readable, load_checkpoint_file, load_weights
from mm_runner.errors import CheckpointError
from mm_runner.model import unwrap_model

from ._snapshot import restore_training

if TYPE_CHECKING:
    import logging

    from mm_runner.runner import Runner

__all__ = ["apply_checkpoint", "find_checkpoint"]


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
    if load_from is not None:
        return Path(load_from), load_checkpoint_file(load_from)
    if not resume:
        return None
    # The main process chooses, so that all resume from the same file.
    found: tuple[Path, dict[str, Any]] | None = None
    chosen: list[str | None] = [None, None]
    if mm_dist.is_main_process():
        found, chosen = _choose(work_dir, logger)
    mm_dist.broadcast_object_list(chosen)
    name, failure = chosen
    if failure is not None:
        raise CheckpointError(failure)
    if name is None:
        logger.info(f"resume: {work_dir} has no checkpoint; training from the start.")
        return None
    return found or (Path(name), load_checkpoint_file(name))


def apply_checkpoint(runner: Runner, checkpoint: dict[str, Any]) -> None:
    """Give the model its weights, and when resuming the rest of the run its state.

    Raises:
        CheckpointError: If nothing fits the model, or when resuming, not everything does.
    """
    runner.call_hook("after_load_checkpoint", checkpoint=checkpoint)
    model = unwrap_model(runner.model)
    weights = checkpoint.get("state_dict", checkpoint)
    for problem in load_weights(model, weights, strict=runner.is_resuming):
        runner.logger.warning(f"load_from: {problem}")
    if runner.is_resuming:
        restore_training(runner, checkpoint)
        runner.logger.info(f"Going on after epoch {runner.epoch}, step {runner.iter}.")


def _choose(work_dir: Path, logger: logging.Logger) -> tuple[Any, list[str | None]]:
    try:
        found = latest_readable(work_dir, logger.warning)
    except CheckpointError as error:
        return None, [None, str(error)]
    return found, [str(found[0]) if found is not None else None, None]
