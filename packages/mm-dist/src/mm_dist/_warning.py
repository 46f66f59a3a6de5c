"""Warn the user's code, however deep inside this package the reason is found."""

import sys
import warnings
from pathlib import Path

_PACKAGE = Path(__file__).parent


def warn_caller(message: str) -> None:
    """Warn with the place of the innermost call that is not this package's own."""
    level, frame = 2, sys._getframe(1)  # noqa: SLF001 (as warnings itself)
    while frame.f_back is not None and _PACKAGE in Path(frame.f_code.co_filename).parents:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, UserWarning, stacklevel=level)
