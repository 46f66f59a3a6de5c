"""Say which known name a user may have meant."""

from collections.abc import Iterable
from difflib import get_close_matches


def suggest_name(name: str, known: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` when a known name is close, else an empty string."""
    near = get_close_matches(name.lower(), list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""
