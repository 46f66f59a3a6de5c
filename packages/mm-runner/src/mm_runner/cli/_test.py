"""``mm-runner test``."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from pathlib import Path

import mm_dist
from mm_runner.errors import ConfigError
from mm_runner.runner import Runner

from ._configuration import load_config, locating

__all__ = ["test"]


def test(options: Namespace) -> int:
    """Test a checkpoint, print the metrics, and return the exit status."""
    cfg = load_config(options)
    cfg.load_from, cfg.resume = options.checkpoint, False
    out = None if options.out is None else _writable(Path(options.out))
    with locating(cfg):
        metrics = Runner.from_cfg(cfg).test()
    if mm_dist.is_main_process():
        for name, value in metrics.items():
            sys.stdout.write(f"{name}: {value}\n")
        if out is not None:
            # A metric may be a table or text.
            out.write_text(f"{json.dumps(metrics, indent=2, default=str)}\n", encoding="utf-8")
    return 0


def _writable(out: Path) -> Path:
    """Return ``out``, whose folder is made: a long test must not end with nowhere to write.

    Raises:
        ConfigError: If nothing can be written there.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"--out: {out} was given, and its folder cannot be made: {error}. Give another file."
        ) from error
    if out.is_dir() or not os.access(out if out.exists() else out.parent, os.W_OK):
        reason = "is a directory" if out.is_dir() else "may not be written"
        raise ConfigError(f"--out: {out} was given, and {reason}. Give another file.")
    return out


test.__test__ = False  # type: ignore[attr-defined]  # not a test of pytest's
