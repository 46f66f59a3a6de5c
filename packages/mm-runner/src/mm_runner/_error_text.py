"""What an error says, also where it fails to say it."""

from __future__ import annotations

__all__ = ["text_of"]


def text_of(error: BaseException) -> str:
    """Return ``str(error)``, or a text in its place where a class of the user's own raises there.

    Example:
        >>> text_of(ValueError("x"))
        'x'
    """
    try:
        return str(error)
    except Exception as failure:  # noqa: BLE001 - whoever handles an error must not hide it
        return f"<its text cannot be had: {type(failure).__name__}>"
