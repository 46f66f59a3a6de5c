"""Parts of messages: near names, spans of ranks, and warnings at the caller's line."""

import sys
import warnings
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

_PACKAGE = Path(__file__).parent


def suggest_name(name: str, known: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` when a known name is close, else an empty string."""
    near = get_close_matches(name.lower(), list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def format_ranks(ranks: Iterable[int]) -> str:
    """Return ranks with neighbours joined."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ", ".join(f"{first}-{last}" if last > first else f"{first}" for first, last in spans)


def warn_caller(message: str) -> None:
    """Warn with the place of the innermost call that is not this package's own."""
    level, frame = 2, sys._getframe(1)  # noqa: SLF001 (as warnings itself)
    while frame.f_back is not None and _PACKAGE in Path(frame.f_code.co_filename).parents:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, UserWarning, stacklevel=level)
