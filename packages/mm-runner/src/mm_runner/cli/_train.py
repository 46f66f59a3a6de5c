"""``mm-runner train``."""

from __future__ import annotations

from argparse import Namespace

from mm_runner.runner import Runner

from ._configuration import load_config, locating

__all__ = ["train"]


def train(options: Namespace) -> int:
    """Train what the configuration says; return the exit status."""
    cfg = load_config(options)
    with locating(cfg):
        Runner.from_cfg(cfg).train()
    return 0
