"""Ends training after a time."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from typing_extensions import override

from mm_runner.errors import ConfigError

from ._hook import Hook

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

__all__ = ["TimeLimitHook"]

_CLOCK = re.compile(r"^(?:(\d+)-)?(\d+):([0-5]\d):([0-5]\d)$")
_MOST_S = 1e9  # longer waits overflow in the system call


class TimeLimitHook(Hook):
    """Ends training after a time: between two steps, with a checkpoint of the last one.

    The main process's clock counts from ``before_run``. All processes stop after the same step, on
    which they agree without a collective in the steps. Accumulated gradients are used first; a
    validation is cut off. A resumed run continues exactly, does that validation first, and has the
    whole time again.

    Args:
        max_time: ``"HH:MM:SS"``, ``"D-HH:MM:SS"``, seconds, or a ``timedelta``. Keep time free for
            a step and for saving.
        then: ``"end"``: training ends as if it were done, with ``after_train`` and ``after_run``,
            but without the last validation; ``"requeue"``: the run leaves as after SIGTERM, by
            :class:`~mm_runner.errors.RunStopped` with status 75. Defaults to ``"end"``.

    Raises:
        ConfigError: If the time cannot be read.

    Example:
        >>> hook = TimeLimitHook("1-11:55:00", then="requeue")
    """

    def __init__(
        self, max_time: str | float | timedelta, then: Literal["end", "requeue"] = "end"
    ) -> None:
        if then not in ("end", "requeue"):
            raise ConfigError(f"TimeLimitHook.then: 'end' or 'requeue' is needed, got {then!r}.")
        self.max_time_s = _seconds(max_time)
        self.then: Literal["end", "requeue"] = then

    @override
    def before_run(self, runner: RunView) -> None:
        if not runner.is_training:
            return
        runner.interruption.end_after(self.max_time_s, self.then)
        limit = timedelta(seconds=round(self.max_time_s, 3))
        runner.logger.info(f"TimeLimitHook: training ends in {limit} at the latest.")


def _seconds(value: Any) -> float:
    seconds = math.nan
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        seconds = float(value)
    elif isinstance(value, str) and (match := _CLOCK.match(value.strip())):
        days, hours, minutes, whole = (float(number or 0) for number in match.groups())
        seconds = 86400 * days + 3600 * hours + 60 * minutes + whole
    if not 0 < seconds <= _MOST_S:
        raise ConfigError(
            "TimeLimitHook.max_time: 'HH:MM:SS', 'D-HH:MM:SS' or a positive number of seconds is "
            f"needed, got {value!r}."
        )
    return seconds
