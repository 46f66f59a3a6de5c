"""Output of the commands."""

import sys
from collections.abc import Iterable, Sequence


def print_text(text: str) -> None:
    """Print a result to stdout."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def print_error(text: str) -> None:
    """Print a line to stderr, in one piece, since ranks share the launcher's console."""
    sys.stdout.flush()
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def format_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return lines whose columns are as wide as their widest cell."""
    lines = [list(header), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
