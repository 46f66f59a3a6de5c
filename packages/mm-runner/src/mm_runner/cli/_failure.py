"""What a command says when it fails."""

from __future__ import annotations

import os
import sys
import time

__all__ = ["FAILURE_STATUS", "INTERRUPTED_STATUS", "report_failure"]

FAILURE_STATUS, INTERRUPTED_STATUS = 1, 130

_OUR_PACKAGES = ("mm_amp", "mm_compile", "mm_dist", "mm_npu", "mm_runner")
# Longer than any launcher takes to see that a process has ended: torchrun looks every 5 s.
_PATIENCE_S = 7.0
# Where launchers say which process of its machine this is.
_LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")


def report_failure(error: Exception, *, show_traceback: bool) -> int:
    """Tell of ``error`` on stderr.

    What is the user's to repair is one message. All processes of a machine have the same
    configuration, so the others than the first wait before they speak: the launcher ends them in
    the meantime, unless the first one had no such error. Anything else is shown with its traceback,
    by every process that it happened to.

    Args:
        error: What ended the command.
        show_traceback: Show the traceback of every error.

    Returns:
        The exit status.
    """
    if show_traceback or not _is_users(error):
        # mm-dist's hook, once there is a process group: it tells the other ranks.
        sys.excepthook(type(error), error, error.__traceback__)
        return FAILURE_STATUS
    if not _is_first_here():
        time.sleep(_PATIENCE_S)
    sys.stderr.write(f"mm-runner: {error}\n")
    sys.stderr.flush()
    return FAILURE_STATUS


def _is_users(error: Exception) -> bool:
    """Return whether ``error`` was raised to tell what was asked, what there is and what to do."""
    return any(kind.__module__.partition(".")[0] in _OUR_PACKAGES for kind in type(error).__mro__)


def _is_first_here() -> bool:
    given = [os.environ[name] for name in _LOCAL_RANKS if name in os.environ]
    return not given or given[0] == "0"
