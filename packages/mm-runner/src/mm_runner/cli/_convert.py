"""``mm-runner convert``."""

from __future__ import annotations

import sys
from argparse import Namespace

from mm_runner.checkpoint import convert_mmengine_checkpoint

__all__ = ["convert"]


def convert(options: Namespace) -> int:
    """Convert a checkpoint of MMEngine, and say what became of it; return the exit status."""
    done = convert_mmengine_checkpoint(options.source, options.target)
    where = f"epoch {done.epoch}, step {done.iter}; " if done.epoch is not None else ""
    sys.stdout.write(f"{done.path}: {where}has {', '.join(done.keys)}\n")
    for name, reason in done.left_out.items():
        sys.stdout.write(f"left out: {name} ({reason})\n")
    return 0
