"""What becomes of a run whose directory somebody removes while it trains."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mm_runner.hooks import CheckpointHook

if TYPE_CHECKING:
    from mm_runner.runner import Runner

    from ._logs import RunLogs

__all__ = ["tell_removal"]


def tell_removal(runner: Runner, logs: RunLogs) -> None:
    """Warn if the directory was removed, and write the configuration again.

    One look at the disk, on the main process: for where something is written anyway.
    """
    if not logs.begin_anew():
        return
    lost = _lost_checkpoints(runner)
    where = runner.work_dir if lost else runner.log_dir
    what = [*lost, "the log and the scalars until now"]
    is_over = runner.iter >= runner.max_iters
    outlook = "" if is_over else "Training goes on, and writes there again. "
    runner.logger.warning(
        f"{where} was removed while training. Lost: {', '.join(what)}. {outlook}config.yaml is "
        "written again."
    )


def _lost_checkpoints(runner: Runner) -> list[str]:
    work_dir = Path(runner.work_dir)
    lost = [
        name
        for hook in runner.hooks
        if isinstance(hook, CheckpointHook)
        for directory in [hook.directory(runner).absolute()]
        if work_dir in (directory, *directory.parents)
        for name in hook.newly_lost(runner)
    ]
    return list(dict.fromkeys(lost))
