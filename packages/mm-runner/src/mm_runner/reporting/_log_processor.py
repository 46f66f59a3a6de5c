"""The text of a log line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mm_runner.errors import ConfigError

from ._progress import as_clock

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["LogProcessor"]

_SECONDS = ("time", "data_time")


class LogProcessor:
    """Formats scalars.

    Args:
        window_size: Over how many of the newest steps losses and times are averaged.
        by_epoch: Whether lines count epochs.
        num_digits: Digits after the point.

    Raises:
        ConfigError: If a number is out of its range.
    """

    def __init__(
        self,
        window_size: int = 10,
        by_epoch: bool = True,  # noqa: FBT001, FBT002 - MMEngine's signature
        num_digits: int = 4,
    ) -> None:
        for name, value, least in (("window_size", window_size, 1), ("num_digits", num_digits, 0)):
            if not isinstance(value, int) or value < least:
                kind = "a positive integer" if least else "an integer >= 0"
                raise ConfigError(f"log_processor.{name}: {kind} is needed, got {value!r}.")
        self.window_size = window_size
        self.by_epoch = by_epoch
        self.num_digits = num_digits

    def line(
        self,
        phase: str,
        position: str,
        scalars: Mapping[str, float],
        *,
        eta_s: float | None = None,
        by_epoch: bool | None = None,
    ) -> str:
        """Return one line.

        Args:
            phase: ``"train"``, ``"val"`` or ``"test"``.
            position: Where in the phase, as ``"[2][10/23]"``.
            scalars: Values by name; the learning rate (of several optimizers, ``<name>.lr``) and
                times stand first.
            eta_s: Seconds until the end of training.
            by_epoch: Whether ``position`` counts epochs; by default as at construction.

        Example:
            >>> LogProcessor().line("train", "[1][10/23]", {"lr": 0.1, "loss": 2.5}, eta_s=61)
            'Epoch(train)  [1][10/23]  lr: 1.0000e-01  eta: 0:01:01  loss: 2.5000'
        """
        counts_epochs = self.by_epoch if by_epoch is None else by_epoch and self.by_epoch
        parts = [f"{'Epoch' if counts_epochs else 'Iter'}({phase})", position]
        rates = [key for key in scalars if key == "lr" or key.endswith(".lr")]
        parts += [f"{key}: {scalars[key]:.{self.num_digits}e}" for key in rates]
        if eta_s is not None:
            parts.append(f"eta: {as_clock(eta_s)}")
        ordered = [key for key in _SECONDS if key in scalars]
        ordered += [key for key in scalars if key not in rates and key not in _SECONDS]
        parts += [f"{key}: {scalars[key]:.{self.num_digits}f}" for key in ordered]
        return "  ".join(parts)
