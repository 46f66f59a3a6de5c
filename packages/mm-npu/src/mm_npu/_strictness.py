"""Whether the portable optimizers are refused: an argument, or ``MM_NPU_STRICT``."""

import os

from ._errors import ConfigError

_VARIABLE = "MM_NPU_STRICT"
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off", "")


def is_strict(strict: bool | None) -> bool:  # noqa: FBT001 - the argument's value itself
    """Decide whether an NPU is insisted on.

    Args:
        strict: What the caller said; None leaves it to the environment variable ``MM_NPU_STRICT``.

    Returns:
        The caller's word, else the variable's; False where neither says anything.

    Raises:
        ConfigError: If either is not a boolean.
    """
    if strict is None:
        return _read_variable()
    if not isinstance(strict, bool):
        raise ConfigError(f"strict is {strict!r}; it takes True, False or None.")
    return strict


def _read_variable() -> bool:
    value = os.environ.get(_VARIABLE, "")
    word = value.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ConfigError(
        f"{_VARIABLE} is {value!r}; it takes {', '.join(_TRUE)} for yes, and "
        f"{', '.join(_FALSE[:-1])} or nothing for no."
    )
