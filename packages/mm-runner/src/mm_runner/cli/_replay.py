"""``mm-runner replay``."""

from __future__ import annotations

import sys
from argparse import Namespace

import mm_dist
from mm_runner.crash import replay_crash

__all__ = ["replay"]


def replay(options: Namespace) -> int:
    """Run the step that crashed again; return the exit status."""
    told = replay_crash(options.bundle, launcher=options.launcher, trust=options.trust)
    if mm_dist.is_main_process():
        sys.stdout.write(f"{told}\n")
    return 0
