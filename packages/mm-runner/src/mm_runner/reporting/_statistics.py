"""Numbers of a log line besides means over the newest steps, as ``custom_cfg`` describes them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mm_runner.errors import ConfigError, did_you_mean
from mm_runner.registry import short_repr

__all__ = ["EPOCH", "NO_VALUES", "Statistic", "TotalledWindow", "as_numbers", "parse_statistics"]

EPOCH, GLOBAL = "epoch", "global"

_KEYS = ("data_src", "method_name", "log_name", "window_size")
# Scalars of every run; grad_norm if gradients are clipped.
_LOGGED_BY_RUNS = ("loss", "time", "data_time", "grad_norm")
_METHODS: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": lambda values: sum(values) / len(values),
    "min": min,
    "max": max,
    "current": lambda values: values[-1],
}
# Values that wait for a log line before they are read without one.
_MOST_PENDING = 10_000
NO_VALUES = (0.0, 0.0, math.inf, -math.inf)


def as_numbers(values: Sequence[Any]) -> list[Any]:
    """Return numbers and tensors of one element as numbers: one transfer for each device."""
    numbers = list(values)
    by_device: dict[torch.device, list[int]] = {}
    for index, value in enumerate(values):
        if type(value) is not float and isinstance(value, Tensor):  # most others are one
            by_device.setdefault(value.device, []).append(index)
    for indices in by_device.values():
        stacked = torch.stack([values[index].reshape(()).float() for index in indices])
        for index, number in zip(indices, stacked.tolist(), strict=True):
            numbers[index] = number
    return numbers


class TotalledWindow(deque[Any]):
    """The newest values of a scalar, and totals of all of them.

    Args:
        maxlen: How many of the newest values to keep.
        spans: Which totals: :data:`EPOCH`, :data:`GLOBAL`, or both.

    Attributes:
        totals: Number, sum, least and greatest value by span.
    """

    def __init__(self, maxlen: int, spans: Sequence[str]) -> None:
        super().__init__(maxlen=maxlen)
        self.pending: list[Any] = []  # since the totals were computed
        self.totals: dict[str, tuple[float, ...]] = dict.fromkeys(spans, NO_VALUES)

    def append(self, value: Any) -> None:
        """Add the newest value, which is not read now."""
        super().append(value)
        self.pending.append(value)
        if len(self.pending) >= _MOST_PENDING:  # nobody asks: memory stays bounded
            self.settle(as_numbers(self.pending))

    def clear(self) -> None:
        """Forget the newest values; totals stay."""
        super().clear()
        self.pending.clear()

    def settle(self, values: Sequence[float]) -> None:
        """Add the pending values, given as numbers, to the totals."""
        known = [value for value in values if not math.isnan(value)]
        for span, (count, total, least, greatest) in self.totals.items():
            self.totals[span] = (
                count + len(values),
                total + math.fsum(values),
                min([least, *known]),
                max([greatest, *known]),
            )
        self.pending.clear()


class Statistic(NamedTuple):
    """One entry of ``custom_cfg``."""

    source: str
    name: str
    method: str
    window: int | str
    where: str

    def of(self, newest: Sequence[float], totals: Mapping[str, Sequence[float]]) -> float:
        """Return the number.

        Args:
            newest: Values in a window, the oldest first, at least one.
            totals: Number, sum, least and greatest of all values, by :data:`EPOCH` and
                :data:`GLOBAL`.
        """
        if isinstance(self.window, int):
            return _METHODS[self.method](newest[-self.window :])
        count, total, least, greatest = totals.get(self.window, NO_VALUES)
        if not count or self.method == "current":
            return newest[-1]
        return {"mean": total / count, "min": least, "max": greatest}[self.method]


def parse_statistics(custom_cfg: Any, where: str, *, by_epoch: bool) -> tuple[Statistic, ...]:
    """Check ``custom_cfg``.

    Args:
        custom_cfg: A list of dicts, or ``None``.
        where: Path of it, for messages.
        by_epoch: Whether there are epochs.

    Raises:
        ConfigError: If an entry does not fit, or its ``log_name`` is that of another scalar.
    """
    if not isinstance(custom_cfg, (list, tuple, type(None))):
        raise ConfigError(f"{where}: a list of dicts is needed, got {short_repr(custom_cfg)}.")
    parsed = [
        _parse(entry, f"{where}[{index}]", by_epoch=by_epoch)
        for index, entry in enumerate(custom_cfg or ())
    ]
    sources = {one.source for one in parsed}.union(_LOGGED_BY_RUNS)
    names: list[str] = []
    for one in parsed:
        if one.name in names or (one.name in sources and one.name != one.source):
            raise ConfigError(
                f"{one.where}.log_name: {one.name!r} is the name of another scalar or entry; give "
                "each a log_name of its own."
            )
        names.append(one.name)
    return tuple(parsed)


def _parse(entry: Any, where: str, *, by_epoch: bool) -> Statistic:
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{where}: a dict is needed, got {short_repr(entry)}.")
    for key in entry:
        if key not in _KEYS:
            raise ConfigError(
                f"{where}.{key}: unknown key; known are {', '.join(_KEYS)}."
                f"{did_you_mean(str(key), _KEYS)}"
            )
    source, method = entry.get("data_src"), entry.get("method_name")
    name, window = entry.get("log_name") or source, entry.get("window_size")
    window = GLOBAL if window is None else window
    for key, value in (("data_src", source), ("log_name", name)):
        if not isinstance(value, str) or not value:
            raise ConfigError(f"{where}.{key}: the name of a scalar is needed, got {value!r}.")
    if not isinstance(method, str) or method not in _METHODS:
        raise ConfigError(
            f"{where}.method_name: {method!r} was given; there are {', '.join(_METHODS)}."
            f"{did_you_mean(str(method), _METHODS)}"
        )
    is_number = isinstance(window, int) and not isinstance(window, bool) and window > 0
    if not is_number and window not in ((EPOCH, GLOBAL) if by_epoch else (GLOBAL,)):
        hint = did_you_mean(window, (EPOCH, GLOBAL)) if isinstance(window, str) else ""
        raise ConfigError(
            f"{where}.window_size: a positive number of steps, 'epoch' (where epochs are counted) "
            f"or 'global' is needed, got {window!r}.{hint}"
        )
    return Statistic(source, name, method, window, where)  # type: ignore[arg-type]
