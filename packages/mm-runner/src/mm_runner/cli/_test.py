"""``mm-runner test``."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import mm_dist
from mm_runner.errors import ConfigError
from mm_runner.evaluator import (
    PREDICTION_SUFFIXES,
    BaseMetric,
    DumpResults,
    Evaluator,
    evaluator_type,
)
from mm_runner.runner import Runner

from ._configuration import load_config, locating
from ._tta import use_views

__all__ = ["test"]


def test(options: Namespace) -> int:
    """Test a checkpoint, print the metrics, and return the exit status.

    Raises:
        PredictionsError: If the predictions were to be written to ``--out`` and could not be; the
            metrics are printed before.
    """
    cfg = load_config(options)
    cfg.load_from, cfg.resume = options.checkpoint, False
    out = None if options.out is None else _writable(Path(options.out))
    dump = (
        None if out is None or out.suffix.lower() not in PREDICTION_SUFFIXES else DumpResults(out)
    )
    if dump is not None and cfg.get("test_evaluator") is not None:  # else the Runner says so
        cfg.test_evaluator = _with_metric(cfg.test_evaluator, dump)
    with locating(cfg):
        if options.tta:
            use_views(cfg)
        metrics = Runner.from_cfg(cfg).test()
    if mm_dist.is_main_process():
        for name, value in metrics.items():
            sys.stdout.write(f"{name}: {value}\n")
        if dump is None and out is not None:
            # A metric may be a table or text.
            out.write_text(f"{json.dumps(metrics, indent=2, default=str)}\n", encoding="utf-8")
    if dump is not None and dump.failure is not None:
        raise dump.failure
    return 0


def _with_metric(evaluator: Any, metric: BaseMetric) -> Any:
    """Return the evaluator, or its config, with one more metric."""
    if isinstance(evaluator, Evaluator):
        evaluator.metrics.append(metric)
        return evaluator
    if evaluator_type(evaluator) is not None:
        return {**evaluator, "metrics": _with_metric(evaluator.get("metrics"), metric)}
    return [*(evaluator if isinstance(evaluator, (list, tuple)) else [evaluator]), metric]


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
