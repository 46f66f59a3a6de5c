"""``mm-runner test``."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path

import mm_dist
from mm_runner.runner import Runner

from ._configuration import load_config, locating

__all__ = ["test"]


def test(options: Namespace) -> int:
    """Test a checkpoint, print the metrics, and return the exit status."""
    cfg = load_config(options)
    cfg.load_from, cfg.resume = options.checkpoint, False
    with locating(cfg):
        metrics = Runner.from_cfg(cfg).test()
    if mm_dist.is_main_process():
        if options.out is not None:
            Path(options.out).write_text(f"{json.dumps(metrics, indent=2)}\n", encoding="utf-8")
        for name, value in metrics.items():
            sys.stdout.write(f"{name}: {value}\n")
    return 0


test.__test__ = False  # type: ignore[attr-defined]  # not a test of pytest's
