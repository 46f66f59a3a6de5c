"""Checks of hooks' arguments."""

from __future__ import annotations

from typing import Any

from mm_runner.errors import ConfigError

__all__ = ["check_integer"]


def check_integer(where: str, value: Any, *, least: int | None = None) -> None:
    """Raise a ConfigError unless ``value`` is an integer, of at least ``least``."""
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if not is_integer or (least is not None and value < least):
        limit = "" if least is None else f" >= {least}"
        raise ConfigError(f"{where}: an integer{limit} is needed, got {value!r}.")
