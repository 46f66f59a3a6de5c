"""The text of a log line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mm_runner.errors import ConfigError
from mm_runner.registry import (
    LOG_PROCESSORS,
    build_from_cfg,
    check_arguments,
    check_integer,
    need_mapping,
    short_repr,
)

from ._console import as_clock
from ._message_hub import MessageHub, Statistic

_SECONDS = ("time", "data_time")
# Scalars of every run; grad_norm if gradients are clipped.
_LOGGED_BY_RUNS = ("loss", "time", "data_time", "grad_norm")
_CUSTOM = "log_processor.custom_cfg"


class LogProcessor:
    """Defines the numbers of a log line, and formats it.

    Of every scalar that steps log, a line has the mean over the newest ``window_size`` steps. An
    entry of ``custom_cfg`` adds a number, or takes the place of the mean: a dict with

    * ``data_src``: which scalar it is about, such as ``"loss"`` or ``"time"``;
    * ``method_name``: ``"mean"``, ``"min"``, ``"max"`` or ``"current"``;
    * ``log_name``: what the line calls it; by default ``data_src``, in whose place it stands then;
    * ``window_size``: over how many of the newest steps; by default as for the means.

    The values are read when a line is due. Of several processes a line has the mean.

    Args:
        window_size: Over how many of the newest steps losses and times are averaged.
        by_epoch: Whether lines count epochs.
        custom_cfg: A list of such entries.
        num_digits: Digits after the point.
        log_with_hierarchy: Accepted so that MMEngine's configs load; it changes nothing.
            TensorBoard and W&B always show ``train/loss`` and ``val/accuracy``.

    Raises:
        ConfigError: If an argument is out of its range, an entry does not fit, or two scalars of a
            line would have one name.

    Example:
        >>> peak = dict(data_src="loss", method_name="max", log_name="peak", window_size=3)
        >>> hub = LogProcessor(window_size=2, custom_cfg=[peak]).message_hub()
        >>> hub.update_scalar("train/loss", 5.0)
        >>> hub.update_scalar("train/loss", 2.0)
        >>> hub.update_scalar("train/loss", 1.0)
        >>> hub.means("train")
        {'loss': 1.5, 'peak': 5.0}
    """

    def __init__(
        self,
        window_size: int = 10,
        by_epoch: bool = True,  # noqa: FBT001, FBT002 - MMEngine's signature
        custom_cfg: Sequence[Mapping[str, Any]] | None = None,
        num_digits: int = 4,
        log_with_hierarchy: bool = False,  # noqa: FBT001, FBT002
    ) -> None:
        check_integer("log_processor.window_size", window_size, least=1)
        check_integer("log_processor.num_digits", num_digits, least=0)
        self.window_size = window_size
        self.by_epoch = by_epoch
        self.num_digits = num_digits
        self.log_with_hierarchy = log_with_hierarchy
        self._statistics = _parse_statistics(custom_cfg, window_size)

    def message_hub(self) -> MessageHub:
        """Return a collector for the scalars of one run."""
        return MessageHub(self.window_size, self._statistics)

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
        rates = [key for key in scalars if key.rpartition(".")[2] in ("lr", "base_lr")]
        times = [key for key in _SECONDS if key in scalars]
        rest = [key for key in scalars if key not in rates and key not in times]
        parts = [f"{key}: {scalars[key]:.{self.num_digits}e}" for key in rates]
        if eta_s is not None:
            parts.append(f"eta: {as_clock(eta_s)}")
        parts += [f"{key}: {scalars[key]:.{self.num_digits}f}" for key in times + rest]
        return "  ".join([f"{'Epoch' if counts_epochs else 'Iter'}({phase})", position, *parts])


def _parse_statistics(custom_cfg: Any, window_size: int) -> tuple[Statistic, ...]:
    if not isinstance(custom_cfg, (list, tuple, type(None))):
        raise ConfigError(f"{_CUSTOM}: a list of dicts is needed, got {short_repr(custom_cfg)}.")
    parsed: dict[str, Statistic] = {}
    for index, entry in enumerate(custom_cfg or ()):
        where = f"{_CUSTOM}[{index}]"
        check_arguments(Statistic, need_mapping(entry, where), where, name="an entry")
        one = Statistic(**{"window_size": window_size, **entry})
        check_integer(f"{where}.window_size", one.window_size, least=1)
        is_renamed = one.name != one.data_src
        if one.name in parsed or (is_renamed and one.name in _LOGGED_BY_RUNS):
            raise ConfigError(
                f"{where}.log_name: {one.name!r} is the name of another scalar or entry; give each "
                "a log_name of its own."
            )
        parsed[one.name] = one
    return tuple(parsed.values())


def build_log_processor(value: Any) -> LogProcessor:
    """Return ``value`` if it is a :class:`LogProcessor`, else one built from its arguments.

    Args:
        value: A log processor, the arguments of one, or ``None``. A ``type`` among the arguments is
            a registered name, a class derived from :class:`LogProcessor`, or the import path of
            one.

    Raises:
        ConfigError: If ``type`` is something else, or the arguments do not fit.
        ComponentNotFoundError: If an import path leads to nothing.
    """
    built = value
    if value is None or isinstance(value, Mapping):
        cfg = {"type": LogProcessor, **(value or {})}
        built = build_from_cfg(cfg, LOG_PROCESSORS, where="log_processor")
    if not isinstance(built, LogProcessor):
        raise ConfigError(
            f"log_processor: {short_repr(value)} was given; give a dict, whose type is "
            "LogProcessor or a class derived from mm_runner.reporting.LogProcessor, or such an "
            "object."
        )
    return built
