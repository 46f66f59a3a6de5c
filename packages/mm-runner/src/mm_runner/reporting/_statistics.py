"""What a log line says of a scalar, as ``custom_cfg`` describes it."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from mm_runner.errors import ComponentNotFoundError, ConfigError, did_you_mean
from mm_runner.registry import FUNCTIONS, check_arguments, short_repr

from ._totals import EPOCH, GLOBAL, Total

__all__ = ["Statistic", "parse_statistics"]

_KEYS = ("data_src", "method_name", "log_name", "window_size")
# Lines have these by themselves, grad_norm if gradients are clipped: known before the first one.
_LOGGED_BY_RUNS = ("loss", "time", "data_time", "grad_norm")
_METHODS: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": lambda values: sum(values) / len(values),
    "min": min,
    "max": max,
    "current": lambda values: values[-1],
}
_OF_TOTAL: dict[str, Callable[[Total], float]] = {
    "mean": lambda total: total.sum / total.num,
    "min": lambda total: total.least,
    "max": lambda total: total.greatest,
}


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
        """Whether it is of more values than any window keeps."""
        return isinstance(self.window, str) and self.method != "current"

    def of(self, newest: Sequence[float], totals: Mapping[str, Total]) -> float:
        """Return the number.

        Args:
            newest: Values in a window, the oldest first, at least one.
            totals: Of those values, by :data:`EPOCH` and :data:`GLOBAL`.

        Raises:
            ConfigError: If a function of the user's own returned no number. One that raises, as
                some do for a single value, gives nan and a warning: a line ends no training.
        """
        if isinstance(self.window, str):
            total = totals.get(self.window)
            if total is None or not total.num or self.method == "current":
                return newest[-1]
            return _OF_TOTAL[self.method](total)
        try:
            value = self.function(newest[-self.window :])
        except Exception as error:  # noqa: BLE001 - the user's function, of any kind
            warnings.warn(
                f"{self.where}.method_name: {self.method} failed on {len(newest[-self.window :])} "
                f"values: {type(error).__name__}: {error}. The line says nan.",
                stacklevel=2,
            )
            return math.nan
        try:
            return float(value)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{self.where}.method_name: {self.method} returned {short_repr(value)} of "
                f"{len(newest[-self.window :])} values; a number is needed."
            ) from error


def parse_statistics(custom_cfg: Any, where: str, *, by_epoch: bool) -> tuple[Statistic, ...]:
    """Check ``custom_cfg``.

    Args:
        custom_cfg: A list of dicts, or ``None``.
        where: Path of it, for messages.
        by_epoch: Whether there are epochs.

    Raises:
        ConfigError: If an entry does not fit, or wants the name of another one, or of a scalar
            that runs log themselves; it is named.
        ComponentNotFoundError: If a ``method_name`` names nothing.
    """
    if custom_cfg is None:
        return ()
    if not isinstance(custom_cfg, (list, tuple)):
        raise ConfigError(f"{where}: a list of dicts is needed, got {short_repr(custom_cfg)}.")
    parsed = [
        _parse(entry, f"{where}[{index}]", by_epoch=by_epoch)
        for index, entry in enumerate(custom_cfg)
    ]
    _check_names(parsed)
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
    source, name = (_name(entry, key, where) for key in ("data_src", "log_name"))
    extra = {key: value for key, value in entry.items() if key not in _KEYS}
    method, function = _method(entry["method_name"], extra, where)
    window = _window(entry.get("window_size"), where, by_epoch=by_epoch)
    if method not in _METHODS and isinstance(window, str):
        raise ConfigError(
            f"{where}.window_size: {entry.get('window_size')!r} was given for {method}; a "
            "function of your own gets the values of a number of steps: give that. 'epoch' and "
            f"'global' go with {', '.join(_METHODS)}, which need not keep all values."
        )
    return Statistic(source, name or source, method, function, window, where)


def _name(entry: Mapping[str, Any], key: str, where: str) -> str:
    name = entry.get(key)
    if key == "log_name" and name is None:
        return ""
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{where}.{key}: the name of a scalar is needed, got {name!r}.")
    if name.rpartition(".")[2] in ("lr", "base_lr"):
        raise ConfigError(
            f"{where}.{key}: {name!r} is a setting of the optimizer, whose present value every "
            "line has; a scalar of steps, such as 'loss' or 'time', is needed."
        )
    return name


def _method(method: Any, extra: Mapping[str, Any], where: str) -> tuple[str, Callable[..., Any]]:
    """Return the name of a method and its function, with the entry's other keys as arguments."""
    if isinstance(method, str) and method in _METHODS:
        for key in extra:
            raise ConfigError(
                f"{where}.{key}: unknown key; known are {', '.join(_KEYS)}."
                f"{did_you_mean(str(key), _KEYS)} Others are arguments of a function of your own, "
                f"and {method!r} takes none."
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
    if not {".", ":"}.intersection(name) and name not in FUNCTIONS:
        known = (*_METHODS, *FUNCTIONS.module_dict)
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
    if window == EPOCH and not by_epoch:
        raise ConfigError(
            f"{where}.window_size: 'epoch' was given, and the log counts steps; a number of steps "
            "or 'global' is needed."
        )
    is_number = isinstance(window, int) and not isinstance(window, bool) and window > 0
    if not is_number and window not in (EPOCH, GLOBAL):
        hint = did_you_mean(window, (EPOCH, GLOBAL)) if isinstance(window, str) else ""
        raise ConfigError(
            f"{where}.window_size: a positive number of steps, 'epoch' or 'global' is needed, got "
            f"{window!r}.{hint}"
        )
    return window  # type: ignore[no-any-return]


def _check_names(statistics: Sequence[Statistic]) -> None:
    taken: dict[str, Statistic] = {}
    for one in statistics:
        other = taken.setdefault(one.name, one)
        if other is not one:
            raise ConfigError(
                f"{one.where}.log_name: {one.name!r} is the name of {other.where} already; give "
                "each a log_name of its own."
            )
        if one.name in _LOGGED_BY_RUNS and one.name != one.source:
            raise ConfigError(
                f"{one.where}.log_name: {one.name!r} is the name of a scalar that runs log "
                f"themselves, and this entry is about {one.source!r}; give another name."
            )
    for one in statistics:
        same = next((o for o in statistics if o.source == one.name != one.source), None)
        if same is not None:
            raise ConfigError(
                f"{one.where}.log_name: {one.name!r} is the scalar that {same.where} is about; "
                "give another name."
            )
