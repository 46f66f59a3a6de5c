"""Which checkpoint a run starts from, and taking its state from it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mm_runner._main_process import run_on_main
from mm_runner.checkpoint import latest_readable, load_checkpoint_file, load_weights
from mm_runner.model import unwrap_model

from ._sharded_state import as_sharded
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


def apply_checkpoint(runner: Runner, checkpoint: dict[str, Any]) -> None:
    """Give the model its weights, and when resuming the rest of the run its state.

    Raises:
        CheckpointError: If nothing fits the model, or when resuming, not everything does.
    """
    runner.call_hook("after_load_checkpoint", checkpoint=checkpoint)
    weights = checkpoint.get("state_dict", checkpoint)
    sharded = as_sharded(runner.model)
    if sharded is not None:
        sharded.load_full_state_dict(weights, strict=runner.is_resuming)
    else:
        model = unwrap_model(runner.model)
        for problem in load_weights(model, weights, strict=runner.is_resuming):
            runner.logger.warning(f"load_from: {problem}")
    if runner.is_resuming:
        restore_training(runner, checkpoint)
        runner.logger.info(f"Going on after epoch {runner.epoch}, step {runner.iter}.")
