"""Write what the commands have to say: results to stdout, complaints to stderr."""

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from mm_dist._errors import ConfigError

# The status of a program that wrote to a closed pipe, as in a shell.
_UNREAD_STATUS = 141


def write_line(text: str = "") -> None:
    """Write a line to stdout, at once."""
    with _ending_unread(sys.stdout):
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


def flush_output() -> None:
    """Write what stdout still holds.

    Raises:
        SystemExit: If its reader is gone, as after ``| head``; silently.
    """
    with _ending_unread(sys.stdout):
        sys.stdout.flush()


@contextmanager
def _ending_unread(stream: TextIO) -> Iterator[None]:
    """End this process without a word if what is written here has no reader any more."""
    try:
        yield
    except BrokenPipeError:
        # Else the interpreter complains at its end about what it could not write.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        raise SystemExit(_UNREAD_STATUS) from None


def write_error(text: str) -> None:
    """Write a line to stderr, after everything that stdout still holds."""
    flush_output()
    with _ending_unread(sys.stderr):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def check_json_target(target: str | None) -> None:
    """Check that a file can be written, before what takes long has been done for it.

    Args:
        target: As ``write_json`` takes it; ``None`` where no JSON is asked for.

    Raises:
        ConfigError: If it cannot.
    """
    if target and target != "-":
        try:
            Path(target).open("a").close()
        except OSError as error:
            raise ConfigError(
                f"--json={target} cannot be written: {error}; give another file."
            ) from error


def write_json(value: Any, target: str) -> None:
    """Write JSON to a file that was checked, or to stdout where the target is ``-``."""
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
