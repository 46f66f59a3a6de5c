"""Boolean settings: in code, in a config, in an environment variable."""

import os
from collections.abc import Mapping

from ._errors import ConfigError

_STRICT = "MM_NPU_STRICT"
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


def parse_boolean(name: str, value: object) -> bool:
    """Read a boolean, or a word that means one; ``bool('False')`` would be True."""
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


def is_strict(
    strict: bool | None,  # noqa: FBT001 - the argument's value itself
    env: Mapping[str, str] = os.environ,
) -> bool:
    """Return whether the portable optimizers are refused."""
    if strict is None:
        value = env.get(_STRICT, "")
        return bool(value) and parse_boolean(_STRICT, value)
    if not isinstance(strict, bool):
        raise ConfigError(f"strict is {strict!r}; it takes True, False or None.")
    return strict
