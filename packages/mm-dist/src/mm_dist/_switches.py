"""Read the environment variables that switch something on or off."""

from collections.abc import Mapping

DEBUG_VARIABLE = "MM_DIST_DEBUG"
HANG_REPORT_VARIABLE = "MM_DIST_HANG_REPORT"
_WORDS = {
    **dict.fromkeys(("1", "true", "on", "yes"), True),
    **dict.fromkeys(("0", "false", "off", "no"), False),
}


def read_switch(env: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Return whether a variable says yes; the default, where it is not set or says neither.

    Args:
        env: The environment.
        name: Of the variable.
        default: What holds without it.

    Example:
        >>> read_switch({"MM_DIST_HANG_REPORT": "Off"}, "MM_DIST_HANG_REPORT", default=True)
        False
    """
    return _WORDS.get(env.get(name, "").strip().lower(), default)
