"""``mm-runner plot``."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

from mm_runner.plotting import plot_runs

__all__ = ["plot"]


def plot(options: Namespace) -> int:
    """Draw the curves of work directories into one picture; return the exit status."""
    out = Path(options.work_dirs[0], "curves.png") if options.out is None else options.out
    picture = plot_runs(options.work_dirs, out, keys=options.keys, window_size=options.smooth)
    sys.stdout.write(f"{picture}\n")
    return 0
