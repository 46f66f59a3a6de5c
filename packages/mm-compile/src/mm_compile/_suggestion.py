"""The end of an error about a name: near names, then all of them."""

from collections.abc import Collection
from difflib import get_close_matches


def suggest(name: object, known: Collection[str]) -> str:
    """Say which known names are near ``name``, and list them all.

    Args:
        name: What was written.
        known: What could have been written.

    Returns:
        One or two sentences, such as ``Did you mean 'mode'? Known: backend, mode.``
    """
    near = get_close_matches(str(name), known, n=1)
    question = f"Did you mean {near[0]!r}? " if near else ""
    return f"{question}Known: {', '.join(sorted(known))}."
