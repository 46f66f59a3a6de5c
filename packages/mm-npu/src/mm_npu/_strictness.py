"""Whether the portable optimizers are refused: an argument, or ``MM_NPU_STRICT``."""

import os
from collections.abc import Mapping

from ._boolean import parse_boolean
from ._errors import ConfigError

_VARIABLE = "MM_NPU_STRICT"


def is_strict(
    strict: bool | None,  # noqa: FBT001 - the argument's value itself
    env: Mapping[str, str] = os.environ,
) -> bool:
    """Decide whether an NPU is insisted on.

    Args:
        strict: What the caller said; None leaves it to the environment variable ``MM_NPU_STRICT``.
        env: The variables of this process.

    Returns:
        The caller's word, else the variable's; False where neither says anything.

    Raises:
        ConfigError: If either is not a boolean.
    """
    if strict is None:
        value = env.get(_VARIABLE, "")
        return bool(value) and parse_boolean(_VARIABLE, value)
    if not isinstance(strict, bool):
        raise ConfigError(f"strict is {strict!r}; it takes True, False or None.")
    return strict
