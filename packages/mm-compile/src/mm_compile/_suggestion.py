"""The end of an error about a name: near names, then all of them."""

from collections.abc import Collection
from difflib import get_close_matches

# More than anybody reads; inductor has several hundred options.
_MOST_LISTED = 40


def suggest(name: object, known: Collection[str]) -> str:
    """Say which known names are near ``name``, and list them all, unless they are very many.

    Args:
        name: What was written.
        known: What could have been written.

    Returns:
        One or two sentences, such as ``Did you mean 'mode'? Known: backend, mode.``
    """
    near = get_close_matches(str(name), known, n=1)
    question = f"Did you mean {near[0]!r}? " if near else ""
    if len(known) <= _MOST_LISTED:
        return f"{question}Known: {', '.join(sorted(known))}."
    nearest = get_close_matches(str(name), known, n=8, cutoff=0)
    return f"{question}Of the {len(known)} known, the nearest are {', '.join(nearest)}."
