"""Write what the commands have to say: results to stdout, complaints to stderr."""

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def write_line(text: str = "") -> None:
    """Write a line to stdout, at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def write_error(text: str) -> None:
    """Write a line to stderr, after everything that stdout still holds."""
    sys.stdout.flush()
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def write_json(value: Any, target: str) -> None:
    """Write JSON to a file, or to stdout where the target is ``-``."""
    text = json.dumps(value, indent=2)
    if target == "-":
        write_line(text)
    else:
        Path(target).write_text(f"{text}\n", encoding="utf-8")


def format_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return lines whose columns are as wide as their widest cell.

    Example:
        >>> print(format_table(["a", "bc"], [["100", "2"]]))
        a    bc
        100  2
    """
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
