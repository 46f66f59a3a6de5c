"""``mm-runner check``."""

from __future__ import annotations

import json
import sys
from argparse import Namespace

from mm_runner.plan import make_plan, plan_as_text

from ._configuration import load_config, locating

__all__ = ["check"]


def check(options: Namespace) -> int:
    """Print what the configuration would do; return the exit status."""
    cfg = load_config(options)
    with locating(cfg):
        plan = make_plan(cfg, world_size=options.world_size)
    sys.stdout.write(f"{json.dumps(plan, indent=2)}\n" if options.json else plan_as_text(plan))
    return 0
