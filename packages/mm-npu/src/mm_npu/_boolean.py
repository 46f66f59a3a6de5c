"""Booleans as people write them: in code, in a config, in an environment variable."""

from ._errors import ConfigError

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


def parse_boolean(name: str, value: object) -> bool:
    """Read a boolean, or a word that means one; ``bool('False')`` would be True.

    Args:
        name: Of the argument or variable, for the error.
        value: True, False, or one of 1, true, yes, on, 0, false, no, off in either case.

    Raises:
        ConfigError: If it is anything else.
    """
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else None
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ConfigError(
        f"{name} is {value!r}; it takes {', '.join(_TRUE)} or True for yes, and "
        f"{', '.join(_FALSE)} or False for no."
    )
