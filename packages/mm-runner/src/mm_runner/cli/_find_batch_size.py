"""``mm-runner find-batch-size``."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Iterator

from mm_runner.finders import BatchSizeReport, BatchTrial, find_batch_size

from ._configuration import load_config, locating
from ._failure import FAILURE_STATUS

__all__ = ["find_batch"]

_MIB = 2**20


def find_batch(options: Namespace) -> int:
    """Print which batches fit, and how fast they are; return the exit status."""
    cfg = load_config(options)
    if not options.json:
        sys.stdout.write(f"{'batch':>8}{'samples/s':>12}{'memory':>14}\n")
    with locating(cfg):
        report = find_batch_size(
            cfg,
            start=options.start,
            maximum=options.max,
            steps=options.steps,
            tell=_tell_nothing if options.json else _tell,
        )
    if options.json:
        content = {**report._asdict(), "trials": [one._asdict() for one in report.trials]}
        sys.stdout.write(f"{json.dumps(content, indent=2)}\n")
    else:
        sys.stdout.write("".join(f"{line}\n" for line in _lines(report)))
    return 0 if report.largest else FAILURE_STATUS


def _tell_nothing(trial: BatchTrial) -> None: ...


def _tell(trial: BatchTrial) -> None:
    if trial.samples_per_s is None:
        text = f"{'-':>12}{'too large':>14}"
    else:
        memory = "-" if trial.peak_bytes is None else f"{trial.peak_bytes / _MIB:,.0f} MiB"
        text = f"{trial.samples_per_s:>12,.1f}{memory:>14}"
    sys.stdout.write(f"{trial.size:>8}{text}\n")
    sys.stdout.flush()


def _lines(report: BatchSizeReport) -> Iterator[str]:
    if not report.trials:
        yield f"No batch can be trained; a larger one was not tried, limited by {report.limit}."
    elif not report.largest:
        yield "No batch fits. Less memory is needed with --amp, or activation_checkpointing."
    else:
        yield f"Largest that fits: {report.largest}, limited by {report.limit}."
        yield f"Largest power of two: {report.power_of_two}."
        yield f"Large enough: {report.fastest}, the smallest within 5 % of the best throughput."
    yield from report.notes
