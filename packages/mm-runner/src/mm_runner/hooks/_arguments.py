"""Checks of hooks' arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mm_runner.errors import ConfigError

__all__ = ["check_integer", "name_list"]


def check_integer(where: str, value: Any, *, least: int | None = None) -> None:
    """Raise a ConfigError unless ``value`` is an integer, of at least ``least``.

    Example:
        >>> check_integer("LoggerHook.interval", 10, least=1)
    """
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if not is_integer or (least is not None and value < least):
        limit = "" if least is None else f" >= {least}"
        raise ConfigError(f"{where}: an integer{limit} is needed, got {value!r}.")


def name_list(where: str, value: Any) -> list[str]:
    """Return names as a list: of ``None`` none, of text one.

    Raises:
        ConfigError: If ``value`` is something else than these or a list of text.
    """
    if value is None:
        return []
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{where}: a name or a list of names is needed, got {value!r}.")
    return list(names)
