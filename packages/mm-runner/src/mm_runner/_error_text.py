"""The text of an error, also where ``str()`` of it fails."""

from __future__ import annotations

import traceback
from pathlib import Path

__all__ = ["text_of", "with_place"]


def text_of(error: BaseException) -> str:
    """Return ``str(error)``, or a placeholder where ``__str__`` raises.

    Example:
        >>> text_of(ValueError("x"))
        'x'
    """
    try:
        return str(error)
    except Exception as failure:  # noqa: BLE001 - the handler must not hide the error
        return f"<its text cannot be had: {type(failure).__name__}>"


def with_place(error: Exception) -> str:
    """Return the kind and text of an error of somebody's own code, and the line that raised it.

    Example:
        >>> with_place(NameError("name 'x' is not defined"))
        "NameError: name 'x' is not defined"
    """
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    is_placed = isinstance(error, SyntaxError)  # by its own text
    return f"{type(error).__name__}: {text_of(error)}{'' if is_placed else place}"
