"""Numbers of a log line besides means over the newest steps, as ``custom_cfg`` describes them."""

from __future__ import annotations

import functools
import math
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mm_runner.errors import ComponentNotFoundError, ConfigError, did_you_mean
from mm_runner.registry import FUNCTIONS, check_arguments, short_repr

__all__ = ["EPOCH", "Statistic", "Total", "TotalledWindow", "as_numbers", "parse_statistics"]

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


def as_numbers(values: Sequence[Any]) -> list[Any]:
    """Return numbers and tensors of one element as numbers: one transfer for each device."""
    numbers = list(values)
    by_device: dict[torch.device, list[int]] = {}
    for index, value in enumerate(values):
        if type(value) is not float and isinstance(value, Tensor):  # most others are one
            by_device.setdefault(value.device, []).append(index)
    for indices in by_device.values():
        stacked = torch.stack([_as_scalar(values[index]) for index in indices])
        for index, number in zip(indices, stacked.tolist(), strict=True):
            numbers[index] = number
    return numbers


def _as_scalar(tensor: Tensor) -> Tensor:
    # Most are so already; asking is cheaper than an operator that changes nothing.
    scalar = tensor if tensor.ndim == 0 else tensor.reshape(())
    return scalar if scalar.dtype is torch.float32 else scalar.float()


class Total:
    """Number, sum, least and greatest of values that are not kept; NaN is neither of the latter.

    Args:
        parts: These four.
    """

    def __init__(self, *parts: float) -> None:
        self.num, self.sum, self.min, self.max = parts or (0.0, 0.0, math.inf, -math.inf)

    def add(self, values: Sequence[float]) -> None:
        """Count ``values`` too."""
        known = [value for value in values if not math.isnan(value)]
        self.num += len(values)
        self.sum += math.fsum(values)
        self.min, self.max = min([self.min, *known]), max([self.max, *known])

    def of(self, method: str) -> float:
        """Return the ``"mean"``, ``"min"`` or ``"max"``; there is at least one value."""
        return self.sum / self.num if method == "mean" else getattr(self, method)


class TotalledWindow(deque[Any]):
    """The newest values of a scalar, and totals of all of them.

    Args:
        maxlen: How many of the newest values to keep.
        kinds: Which totals: :data:`EPOCH`, :data:`GLOBAL`, or both.
    """

    def __init__(self, maxlen: int, kinds: Sequence[str]) -> None:
        super().__init__(maxlen=maxlen)
        self.totals = {kind: Total() for kind in kinds}
        self.pending: list[Any] = []  # since the totals were computed

    def append(self, value: Any) -> None:
        """Add the newest value, which is not read now."""
        super().append(value)
        self.pending.append(value)
        if len(self.pending) >= _MOST_PENDING:  # nobody asks: memory stays bounded
            self.settle(as_numbers(self.pending))

    def settle(self, values: Sequence[float]) -> None:
        """Add the pending values, given as numbers, to the totals."""
        for total in self.totals.values():
            total.add(values)
        self.pending.clear()


class Statistic(NamedTuple):
    """One entry of ``custom_cfg``."""

    source: str
    name: str
    method: str
    function: Callable[[Sequence[float]], Any]
    window: int | str
    where: str

    @property
    def needs_total(self) -> bool:
        """Whether it covers more values than a window keeps."""
        return isinstance(self.window, str) and self.method != "current"

    def of(self, newest: Sequence[float], totals: Mapping[str, Total]) -> float:
        """Return the number.

        Args:
            newest: Values in a window, the oldest first, at least one.
            totals: Of all values, by :data:`EPOCH` and :data:`GLOBAL`.

        Raises:
            ConfigError: If a user's function returned no number. If it fails, as some do for a
                single value, the number is NaN, with a warning.
        """
        if isinstance(self.window, str):
            total = totals.get(self.window)
            has_total = total is not None and total.num and self.needs_total
            return total.of(self.method) if has_total and total is not None else newest[-1]
        values = newest[-self.window :]
        try:
            value = self.function(values)
        except Exception as error:  # noqa: BLE001 - the user's function, of any kind
            warnings.warn(
                f"{self.where}.method_name: {self.method} failed on {len(values)} values: "
                f"{type(error).__name__}: {error}. The line says nan.",
                stacklevel=2,
            )
            return math.nan
        try:
            return float(value)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{self.where}.method_name: {self.method} returned {short_repr(value)} of "
                f"{len(values)} values; a number is needed."
            ) from error


def parse_statistics(custom_cfg: Any, where: str, *, by_epoch: bool) -> tuple[Statistic, ...]:
    """Check ``custom_cfg``.

    Args:
        custom_cfg: A list of dicts, or ``None``.
        where: Path of it, for messages.
        by_epoch: Whether there are epochs.

    Raises:
        ConfigError: If an entry does not fit, or its ``log_name`` is that of another scalar.
        ComponentNotFoundError: If a ``method_name`` names nothing.
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
    for key in ("data_src", "method_name"):
        if key not in entry:
            raise ConfigError(
                f"{where}.{key}: this key is missing; given: {', '.join(map(repr, entry))}. An "
                "entry has data_src, method_name, and perhaps log_name and window_size."
            )
    source = entry["data_src"]
    name = entry.get("log_name") or source
    for key, value in (("data_src", source), ("log_name", name)):
        if not isinstance(value, str) or not value:
            raise ConfigError(f"{where}.{key}: the name of a scalar is needed, got {value!r}.")
    extra = {key: value for key, value in entry.items() if key not in _KEYS}
    method, function = _method(entry["method_name"], extra, where)
    window = _window(entry.get("window_size"), where, by_epoch=by_epoch)
    if method not in _METHODS and isinstance(window, str):
        raise ConfigError(
            f"{where}.window_size: a positive number is needed with {method}, a function of your "
            f"own; 'epoch' and 'global' go with {', '.join(_METHODS)}."
        )
    return Statistic(source, name, method, function, window, where)


def _method(method: Any, extra: Mapping[str, Any], where: str) -> tuple[str, Callable[..., Any]]:
    """Return the name of a method and its function, with the entry's other keys as arguments."""
    if isinstance(method, str) and method in _METHODS:
        for key in extra:
            raise ConfigError(
                f"{where}.{key}: unknown key; known are {', '.join(_KEYS)}."
                f"{did_you_mean(str(key), _KEYS)}"
            )
        return method, _METHODS[method]
    function = _look_up(method, where) if isinstance(method, str) else method
    if not callable(function):
        raise ConfigError(
            f"{where}.method_name: {', '.join(_METHODS)}, or a function of a list of numbers or "
            f"its import path, is needed, got {method!r}."
        )
    check_arguments(function, extra, where, is_partial=True)
    name = method if isinstance(method, str) else getattr(method, "__name__", repr(method))
    return name, functools.partial(function, **extra) if extra else function


def _look_up(name: str, where: str) -> Any:
    known = (*_METHODS, *FUNCTIONS.module_dict)
    if not {".", ":"}.intersection(name) and name not in known:
        raise ConfigError(
            f"{where}.method_name: {name!r} was given; there are {', '.join(known)}, and import "
            f"paths such as 'statistics:median'.{did_you_mean(name, known)}"
        )
    try:
        return FUNCTIONS.get(name)
    except ComponentNotFoundError as error:
        raise ComponentNotFoundError(f"{where}.method_name: {error}") from error


def _window(window: Any, where: str, *, by_epoch: bool) -> int | str:
    if window is None:
        return GLOBAL
    is_number = isinstance(window, int) and not isinstance(window, bool) and window > 0
    if not is_number and window not in ((EPOCH, GLOBAL) if by_epoch else (GLOBAL,)):
        hint = did_you_mean(window, (EPOCH, GLOBAL)) if isinstance(window, str) else ""
        raise ConfigError(
            f"{where}.window_size: a positive number of steps, 'epoch' (where epochs are counted) "
            f"or 'global' is needed, got {window!r}.{hint}"
        )
    return window  # type: ignore[no-any-return]
