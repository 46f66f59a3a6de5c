"""``mm-runner find-lr``."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import mm_dist
from mm_runner.errors import ConfigError
from mm_runner.finders import LearningRateReport, find_learning_rate
from mm_runner.plotting import plot_rates
from mm_runner.plotting._figure import new_figure

from ._configuration import load_config, locating

__all__ = ["find_lr"]

_PICTURES, _NUMBERS = (".png", ".svg"), ".json"
_MOST_ROWS = 12


def find_lr(options: Namespace) -> int:
    """Print what the range test of the learning rate found; return the exit status."""
    cfg = load_config(options)
    out = None if options.out is None else _checked(Path(options.out))
    with locating(cfg):
        report = find_learning_rate(
            cfg, min_lr=options.min_lr, max_lr=options.max_lr, steps=options.steps
        )
    if mm_dist.is_main_process():
        sys.stdout.write("".join(f"{line}\n" for line in _lines(report)))
        if out is not None:
            _write(report, out)
            sys.stdout.write(f"{out}\n")
    return 0


def _lines(report: LearningRateReport) -> Iterator[str]:
    points = report.points
    yield f"{'lr':>10}{'loss':>12}{'smoothed':>12}"
    every = -(-len(points) // _MOST_ROWS) or 1
    for point in points[::every]:
        yield f"{point.lr:>10.2e}{point.loss:>12.4g}{point.smoothed:>12.4g}"
    if report.diverged:
        end = f"{points[-1].lr:.2e}" if points else "the first rate"
        yield f"The loss diverged after {len(points)} steps, at {end}."
    if report.suggestion is None:
        yield "No suggestion: the loss falls nowhere. Give other rates, or more --steps."
    else:
        rate = f"{report.suggestion:.2g}"
        yield f"Suggested: optim_wrapper.optimizer.lr={rate}, where the loss falls fastest."
    yield from report.notes


def _checked(out: Path) -> Path:
    """Return ``out``: a test must not end with nowhere to write.

    Raises:
        ConfigError: If its ending says no format, or nothing can be written there.
        MMRunnerError: If it is a picture, and matplotlib is not installed.
    """
    if out.suffix.lower() not in (*_PICTURES, _NUMBERS):
        raise ConfigError(f"--out: {out} was given; it has to end in .png, .svg or .json.")
    if out.suffix.lower() in _PICTURES:
        new_figure(1, 1)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"--out: {out} was given, and its folder cannot be made: {error}. Give another file."
        ) from error
    if out.is_dir() or not os.access(out if out.exists() else out.parent, os.W_OK):
        raise ConfigError(f"--out: {out} was given, and may not be written. Give another file.")
    return out


def _write(report: LearningRateReport, out: Path) -> None:
    if out.suffix.lower() != _NUMBERS:
        plot_rates(report.points, report.suggestion, out)
        return
    content = {**report._asdict(), "points": [point._asdict() for point in report.points]}
    out.write_text(f"{json.dumps(content, indent=2)}\n", encoding="utf-8")
