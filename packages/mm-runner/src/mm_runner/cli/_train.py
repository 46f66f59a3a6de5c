"""``mm-runner train``."""

from __future__ import annotations

import sys
from argparse import Namespace

import mm_dist
from mm_runner.runner import Runner

from ._configuration import load_config, locating
from ._fast_dev_run import try_out

__all__ = ["train"]


def train(options: Namespace) -> int:
    """Train what the configuration says; return the exit status."""
    cfg = load_config(options)
    with locating(cfg):
        if options.fast_dev_run is None:
            Runner.from_cfg(cfg).train()
            return 0
        told = try_out(cfg, options.fast_dev_run, options.work_dir)
    if mm_dist.is_main_process():
        sys.stdout.write(f"{told}\n")
    return 0
