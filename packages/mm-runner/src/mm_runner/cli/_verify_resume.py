"""``mm-runner verify-resume``."""

from __future__ import annotations

import sys
from argparse import Namespace

import mm_dist
from mm_runner.tools import verify_resume

from ._configuration import load_config, locating
from ._failure import FAILURE_STATUS

__all__ = ["verify"]


def verify(options: Namespace) -> int:
    """Compare a resumed training with one without a stop; return the exit status."""
    cfg = load_config(options)
    with locating(cfg):
        report = verify_resume(
            cfg, at_step=options.at_step, steps=options.steps, work_dir=options.work_dir
        )
    if mm_dist.is_main_process():
        sys.stdout.write(f"{report}\n")
    return 0 if report.equal else FAILURE_STATUS
