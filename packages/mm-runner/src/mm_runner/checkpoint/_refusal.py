"""What torch's loader of safe files has against a file, without its advice to load unsafely."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["refusal_of", "refused_global"]

# "Unsupported class" is how torch older than 2.1 says it.
_GLOBAL = re.compile(r"(?:GLOBAL|Unsupported class) ([\w.]*\w)")
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def refused_global(error: BaseException) -> str | None:
    """Return the function or class that a file names and the loader does not take, if that is it.

    Example:
        >>> refused_global(ValueError("Unsupported global: GLOBAL posix.system was not an allowed"))
        'posix.system'
    """
    found = _GLOBAL.search(_ESCAPE.sub("", str(error)))
    return found.group(1) if found else None


def refusal_of(path: Path, error: BaseException) -> str:
    """Return the message about a file that holds something besides tensors and primitives."""
    name = refused_global(error)
    what = (
        f"objects besides tensors and primitives: it names {name}"
        if name
        else ("something besides tensors and primitives")
    )
    return (
        f"{path} holds {what}. It is refused, and nothing in it was executed. If MMEngine wrote "
        f"it, convert it with 'mm-runner convert {path} <new file>'; else save its state_dict "
        "again with torch.save, from a program that trusts it."
    )
