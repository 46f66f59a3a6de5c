"""Read the time that a collective may take."""

import math
from datetime import timedelta

from mm_dist._errors import ArgumentTypeError, ConfigError


def read_timeout(timeout: float | timedelta | None, name: str = "timeout") -> timedelta | None:
    """Return a timeout as ``timedelta``; numbers are seconds, ``None`` is torch's default.

    Args:
        timeout: What the user gave.
        name: Of the argument, for messages.

    Raises:
        ArgumentTypeError: If it is neither a number nor a ``timedelta``.
        ConfigError: If it is not more than 0, or not finite.

    Example:
        >>> read_timeout(90)
        datetime.timedelta(seconds=90)
    """
    if timeout is None:
        return None
    if isinstance(timeout, timedelta):
        seconds = timeout.total_seconds()
    elif isinstance(timeout, (int, float)) and not isinstance(timeout, bool):
        seconds = float(timeout)
    else:
        raise ArgumentTypeError(f"{name}={timeout!r} is no time; give seconds or a timedelta.")
    # From 2**31 seconds on, torch's own milliseconds or gloo's overflow.
    if not math.isfinite(seconds) or not 0 < seconds < 2**31:
        raise ConfigError(f"{name}={timeout!r} must be more than 0 seconds, and finite.")
    return timedelta(seconds=seconds)


def check_steady_timeout(steady: timedelta | None, first: timedelta | None) -> None:
    """Check that the timeout after the first step is not longer than that of the first step.

    Raises:
        ConfigError: If it is.
    """
    if steady is not None and first is not None and steady > first:
        raise ConfigError(
            f"steady_timeout={steady} is longer than timeout={first}; it is for the steps after "
            "the first one, which is slower. Swap them, or leave steady_timeout out."
        )
