"""Windows of epochs or iterations in which schedules act."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

from mm_runner.errors import ConfigError

__all__ = ["RunLength", "Window", "take_window"]

_KEYS = ("begin", "end", "by_epoch", "last_step", "convert_to_iter_based", "verbose")


@dataclass(frozen=True)
class RunLength:
    """How long a run is.

    Attributes:
        num_epochs: Epochs.
        num_iters: Iterations.
        epoch_length: Iterations of an epoch, or ``None`` if that is not known.
    """

    num_epochs: int
    num_iters: int
    epoch_length: int | None = None

    @property
    def iters_per_epoch(self) -> int:
        """Iterations of an epoch."""
        return self.epoch_length or self.num_iters // max(self.num_epochs, 1)


@dataclass(frozen=True)
class Window:
    """Where a schedule acts: ``begin <= count < end``.

    Attributes:
        begin: First epoch or iteration.
        end: The one after the last.
        by_epoch: Whether epochs are counted.
        last_step: How many are done already, -1 for none.
        factor: What arguments that count epochs are to be multiplied by: the iterations of an epoch
            where the config is converted, else 1.
    """

    begin: int
    end: int
    by_epoch: bool
    last_step: int
    factor: int

    @property
    def length(self) -> int:
        """Number of epochs or iterations."""
        return self.end - self.begin


def take_window(arguments: dict[str, Any], run: RunLength, where: str) -> Window:
    """Take the keys of the window out of ``arguments``.

    Raises:
        ConfigError: If the window is empty, or a key has a value that cannot work.
    """
    given = {key: arguments.pop(key) for key in _KEYS if key in arguments}
    for name in ("by_epoch", "convert_to_iter_based"):
        if not isinstance(given.get(name, True), bool):
            raise ConfigError(f"{where}.{name}: True or False is needed, got {given[name]!r}.")
    by_epoch = is_in_epochs = bool(given.get("by_epoch", True))
    factor = 1
    if given.get("convert_to_iter_based", False):
        if not by_epoch:
            raise ConfigError(
                f"{where}.convert_to_iter_based: it converts a schedule by epoch, and "
                "by_epoch=False was given; leave one of the two out."
            )
        by_epoch, factor = False, run.iters_per_epoch
    if given.get("verbose", False):
        warnings.warn(f"{where}.verbose has no effect: log lines show the value.", stacklevel=2)
    begin, end, last_step = given.get("begin", 0), given.get("end"), given.get("last_step", -1)
    for name, value in (("begin", begin), ("end", end), ("last_step", last_step)):
        is_left_out = value is None and name == "end"
        if not is_left_out and (not isinstance(value, int) or isinstance(value, bool)):
            raise ConfigError(
                f"{where}: {name}={value!r} was given; begin, end and last_step are integers, "
                "epochs or iterations."
            )
    of_run = run.num_epochs if by_epoch else run.num_iters
    window = Window(
        begin * factor, of_run if end is None else end * factor, by_epoch, last_step, factor
    )
    if not 0 <= window.begin < window.end:
        raise ConfigError(
            f"{where}: begin={begin} {_describe_end(end, run, is_in_epochs=is_in_epochs)}; "
            "0 <= begin < end is needed."
        )
    return window


def _describe_end(end: int | None, run: RunLength, *, is_in_epochs: bool) -> str:
    if end is not None:
        return f"and end={end} were given"
    of_run = f"{run.num_epochs:,} epoch(s)" if is_in_epochs else f"{run.num_iters:,} iteration(s)"
    return f"was given, and the run ends after {of_run}"
