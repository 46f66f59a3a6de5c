"""The order in which hooks act at a stage."""

from __future__ import annotations

from mm_runner.errors import ConfigError, did_you_mean

__all__ = ["priority_name", "priority_of"]

_LEVELS = {
    "HIGHEST": 0,
    "VERY_HIGH": 10,
    "HIGH": 30,
    "ABOVE_NORMAL": 40,
    "NORMAL": 50,
    "BELOW_NORMAL": 60,
    "LOW": 70,
    "VERY_LOW": 90,
    "LOWEST": 100,
}


def priority_name(priority: int | str) -> str:
    """Return the name of a priority; of one between the names, the number as text.

    Raises:
        ConfigError: If it is no priority.

    Example:
        >>> priority_name(90), priority_name(45)
        ('VERY_LOW', '45')
    """
    level = priority_of(priority)
    return next((name for name, one in _LEVELS.items() if one == level), str(level))


def priority_of(priority: int | str) -> int:
    """Return a priority as a number from 0 (acts first) to 100.

    Args:
        priority: Such a number, or a name such as ``"NORMAL"`` (50), in any case.

    Raises:
        ConfigError: If it is neither.

    Example:
        >>> priority_of("very_low")
        90
    """
    if isinstance(priority, str) and priority.upper() in _LEVELS:
        return _LEVELS[priority.upper()]
    if isinstance(priority, int) and 0 <= priority <= 100:
        return priority
    hint = did_you_mean(priority, _LEVELS) if isinstance(priority, str) else ""
    raise ConfigError(
        f"A hook's priority {priority!r} was given; it is a number from 0 to 100 or one of "
        f"{', '.join(_LEVELS)}.{hint}"
    )
