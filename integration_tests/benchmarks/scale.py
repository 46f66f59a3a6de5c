"""Compute how startup, all-reduces and checkpoints scale, and what breaks first.

Run: ``python scale.py [--ranks FROM:TO] [--json FILE]``. It starts nothing; the page on scale
describes formulas and constants.
"""

# ruff: noqa: T201 (printing is what it is for)

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scaling.arguments import add_scale_arguments, read_constants, read_job, read_ranks
from scaling.model import (
    Estimate,
    Job,
    Limit,
    describe_constants,
    estimate,
    find_limits,
)
from scaling.model.formulas import FORMULAS
from scaling.model.limits import MOST_RANKS

_LABEL = "computed by formulas; nothing was started"
# The largest number of each unit is that of the next one's seconds.
_UNITS = ((1e-3, 1e6, "us"), (1.0, 1e3, "ms"), (120.0, 1.0, "s"), (7200.0, 1 / 60, "min"))
_HOUR_UNITS = ((48 * 3600.0, 1 / 3600, "h"), (float("inf"), 1 / 86400, "d"))


def main() -> None:
    parser = argparse.ArgumentParser()
    add_scale_arguments(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    options = parser.parse_args()
    try:
        job, constants = read_job(options), read_constants(options)
        ranks = read_ranks(options.ranks)
    except ValueError as error:
        parser.error(str(error))
    estimates = [estimate(job, number, constants) for number in ranks]
    limits = find_limits(job, constants)
    described = describe_constants(constants, job.backend)
    if options.json:
        result = {
            "what": _LABEL,
            "job": {**asdict(job), "timeout": job.timeout_s},
            "estimates": [_as_json(each) for each in estimates],
            "limits": [asdict(each) for each in limits],
            "constants": described,
        }
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    parts = [_title(job), _format_start(estimates), _format_saving(estimates)]
    parts.append(_format_limits(limits))
    if options.explain:
        parts += [_format_formulas(), _format_constants(described)]
    print("\n\n".join(parts))


def format_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _as_json(each: Estimate) -> dict[str, Any]:
    result = asdict(each)
    result["startup"]["total"] = each.startup.total
    return result


def _title(job: Job) -> str:
    return (
        f"{job.parameters:.3g} parameters with {job.backend}, {job.ranks_per_node} ranks per "
        f"machine, timeout {job.timeout_s:g} s ({_LABEL})"
    )


def _format_start(estimates: Sequence[Estimate]) -> str:
    header = ["ranks", "imports", "store", "group", "objects", "start", "all-reduce", "by", "one"]
    return format_table(
        header,
        [
            [
                str(each.ranks),
                format_seconds(each.startup.imports),
                format_seconds(each.startup.store),
                format_seconds(each.startup.group),
                format_seconds(each.startup.objects),
                format_seconds(each.startup.total),
                format_seconds(each.all_reduce),
                each.algorithm,
                format_seconds(each.agreement),
            ]
            for each in estimates
        ],
    )


def _format_saving(estimates: Sequence[Estimate]) -> str:
    header = ["ranks", "gathered", "in parts", "pause", "reading", "failure", "save", "lost"]
    return format_table(
        header,
        [
            [
                str(each.ranks),
                format_seconds(each.checkpoint.gathered),
                format_seconds(each.checkpoint.in_parts),
                format_seconds(each.checkpoint.pause),
                format_seconds(each.checkpoint.reading),
                format_seconds(each.failures.mtbf),
                format_seconds(each.failures.interval),
                f"{each.failures.lost:.2%}",
            ]
            for each in estimates
        ],
    )


def _format_limits(limits: Sequence[Limit]) -> str:
    rows = [
        [f"above {MOST_RANKS}" if each.first is None else str(each.first), each.what]
        for each in limits
    ]
    lines = format_table(["ranks", "what breaks first"], rows).splitlines()
    for number, each in enumerate(limits, start=1):
        lines[number] = f"{lines[number]}\n    {each.then}: {each.answer}"
    return "\n".join(lines)


def _format_formulas() -> str:
    symbols = "n ranks on m machines, L on the fullest; S bytes; B bandwidth; a time of one step"
    return "\n".join(
        [symbols, *(f"{each.what}: {each.formula}\n    {each.source}" for each in FORMULAS)]
    )


def _format_constants(described: dict[str, dict[str, Any]]) -> str:
    rows = [
        [name, f"{about['value']:.4g}", about["unit"], about["origin"], about["source"]]
        for name, about in described.items()
    ]
    return format_table(["constant", "value", "unit", "origin", "source"], rows)


def format_seconds(seconds: float) -> str:
    """Return a time with three digits, in the unit that suits it.

    Example:
        >>> format_seconds(0.0021), format_seconds(5400)
        ('2.1 ms', '90 min')
    """
    if seconds == 0:
        return "0"
    unit = next(unit for unit in (*_UNITS, *_HOUR_UNITS) if seconds < unit[0])
    return f"{seconds * unit[1]:.3g} {unit[2]}"


if __name__ == "__main__":
    main()
