"""Wording shared by messages."""

from collections.abc import Collection
from difflib import get_close_matches

# Inductor has several hundred options.
_MOST_LISTED = 40


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``"1 graph"``, ``"2 graphs"``, ``"0 graphs"``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def duration(seconds: float) -> str:
    """Return a duration with its unit: ``"12.3 ms"``, ``"4.2 s"``."""
    return f"{seconds * 1e3:.3g} ms" if abs(seconds) < 1 else f"{seconds:.3g} s"


def suggest(name: object, known: Collection[str]) -> str:
    """Return the end of an error about an unknown name: the nearest names, then all of them."""
    near = get_close_matches(str(name), known, n=1)
    question = f"Did you mean {near[0]!r}? " if near else ""
    if len(known) <= _MOST_LISTED:
        return f"{question}Known: {', '.join(sorted(known))}."
    nearest = get_close_matches(str(name), known, n=8, cutoff=0)
    return f"{question}Of the {len(known)} known, the nearest are {', '.join(nearest)}."
