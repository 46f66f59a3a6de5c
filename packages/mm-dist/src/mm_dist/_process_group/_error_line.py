"""Say in one line what an exception says in many."""

_TRACEBACK = "Traceback (most recent call last)"
# Before the traceback that torch puts into the message of an exception from another process, as
# from a worker of the DataLoader.
_ORIGINAL = f"Original {_TRACEBACK}"
_MOST_CHARACTERS = 300


def shorten_error(text: str) -> str:
    """Return the line of an exception's text that tells most; of one with another inside, both.

    Args:
        text: Type and message, as in ``ValueError: boom``; the message may have several lines.

    Example:
        >>> shorten_error("ValueError: boom" + chr(10) + "and more")
        'ValueError: boom'
    """
    outer = _first_line(text)
    if _ORIGINAL not in text:
        return outer
    frames_and_cause = text.rpartition(_TRACEBACK)[2].splitlines()[1:]
    cause = _first_line("\n".join(line for line in frames_and_cause if not line.startswith(" ")))
    return f"{outer} {cause}".strip()


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    line = lines[0] if lines else ""
    if line.endswith(":") and len(lines) > 1:
        # It only announces the next: the type alone, or the heading of a list.
        line = f"{line} {lines[1]}"
    return line if len(line) <= _MOST_CHARACTERS else f"{line[:_MOST_CHARACTERS]}..."
