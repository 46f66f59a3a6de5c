"""Checks of hooks' arguments."""

from __future__ import annotations

from typing import Any

from mm_runner.errors import ConfigError

__all__ = ["check_integer"]


def check_integer(where: str, value: Any, *, least: int) -> None:
    """Raise a ConfigError unless ``value`` is an integer of at least ``least``.

    Example:
        >>> check_integer("LoggerHook.interval", 10, least=1)
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{where}: an integer >= {least} is needed, got {value!r}.")
