"""The scalars of a run between two log lines."""

from __future__ import annotations

import math
import re
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from torch import Tensor

from mm_dist import is_main_process
from mm_runner.errors import ConfigError, did_you_mean
from mm_runner.evaluator import as_number

from ._statistics import EPOCH, NO_VALUES, Statistic, TotalledWindow, as_numbers

__all__ = ["MessageHub"]

_MOST_RESULTS = 100
# Before the names of metrics in a state.
_RESULT = "result:"
# Lines until a statistic without values is warned of: some scalars come with the first optimizer
# step.
_PATIENCE = 3


class ScalarWindow:
    """What hooks ask of one scalar; each question waits for the device.

    Args:
        values: Numbers, or tensors of one element, the oldest first.

    Example:
        >>> window = ScalarWindow([4.0, 1.0, 2.0])
        >>> window.current(), window.mean(2), window.max()
        (2.0, 1.5, 4.0)
    """

    def __init__(self, values: Iterable[Any]) -> None:
        self._values = list(values)

    def _newest(self, window_size: int | None) -> list[float]:
        return [float(number) for number in as_numbers(self._values[-(window_size or 0) :])]

    def current(self) -> float:
        """Return the newest value."""
        return self._newest(1)[0]

    def mean(self, window_size: int | None = None) -> float:
        """Return the mean of the newest ``window_size`` values, by default of all that are kept."""
        values = self._newest(window_size)
        return sum(values) / len(values)

    def max(self, window_size: int | None = None) -> float:
        """Return the greatest of these."""
        return max(self._newest(window_size))

    def min(self, window_size: int | None = None) -> float:
        """Return the least of these."""
        return min(self._newest(window_size))


class MessageHub:
    """Collects scalars without reading them, and reads all at once when a line is due.

    A tensor stays on its device until :meth:`means` brings the whole window to the host in one
    transfer per device. Memory is bounded by the window, however long the run.

    Args:
        window_size: How many of the newest values of a scalar its mean is taken over.
        statistics: What lines say besides, see :class:`LogProcessor`.
        mean_pattern: Names that a mean is taken of, else the newest value; ``None``: all.

    Attributes:
        not_finite: Scalars of which :meth:`means` found no finite value in the window.

    Example:
        >>> hub = MessageHub(window_size=2)
        >>> for loss in (9.0, 1.0, torch.tensor(3.0)):
        ...     hub.update_scalar("train/loss", loss)
        >>> hub.means("train")
        {'loss': 2.0}
    """

    def __init__(
        self,
        window_size: int = 10,
        statistics: Sequence[Statistic] = (),
        mean_pattern: re.Pattern[str] | None = None,
    ) -> None:
        self.not_finite: list[str] = []
        self._window_size = window_size
        self._statistics = statistics
        self._mean_pattern = mean_pattern
        self._num_lines = 0
        self._epoch = -1  # none has begun
        self._is_resumed = False  # perhaps in the middle of an epoch
        # One deque for each scalar, for good: recorders hold on to it.
        self._scalars: dict[str, deque[Any]] = {}
        self._results: dict[str, deque[float]] = {}  # of evaluations
        self._info: dict[str, Any] = {}
        # What is read when it is asked for, at no cost for steps.
        self._scalar_readers: dict[str, Callable[[], Mapping[str, float]]] = {}
        self._info_readers: dict[str, Callable[[], Any]] = {}

    def update_scalar(self, name: str, value: float | Tensor) -> None:
        """Add a value: a number, or a tensor of one element, which is not read now.

        Args:
            name: With its phase, as ``"train/loss"``.
            value: The newest value.

        Raises:
            ConfigError: If a tensor has more elements than one.
        """
        if isinstance(value, Tensor):
            if value.ndim and value.numel() != 1:
                raise ConfigError(
                    f"{name!r} was to be logged and has the shape {tuple(value.shape)}; a tensor "
                    "of one element is needed. Let train_step return its mean, or leave it out."
                )
            if value.requires_grad:  # the graph behind it need not live as long as the window
                value = value.detach()
        self._window(name).append(value)

    def recorder(self, name: str) -> Callable[[float | Tensor], None]:
        """Return a function that adds a value to a scalar, unchecked, as fast as can be.

        Args:
            name: With its phase, as ``"train/time"``. Of its values, tensors must be 0-d and
                without a graph.
        """
        return self._window(name).append

    def update_scalars(self, log_dict: Mapping[str, float | Tensor]) -> None:
        """Add a value to each of several scalars, by name."""
        for name, value in log_dict.items():
            self.update_scalar(name, value)

    def update_results(self, phase: str, metrics: Mapping[str, Any]) -> None:
        """Add the metrics of an evaluation, for :meth:`get_scalar`; log lines have them anyway.

        Args:
            phase: ``"val"`` or ``"test"``.
            metrics: By name; numbers, or arrays and tensors of one element; others are left out.
        """
        for name, value in metrics.items():
            number = as_number(value)
            if number is not None:
                kept = self._results.setdefault(f"{phase}/{name}", deque(maxlen=_MOST_RESULTS))
                kept.append(float(number))

    def follow_scalars(self, phase: str, read: Callable[[], Mapping[str, float]]) -> None:
        """Read scalars of ``phase`` by ``read`` when :meth:`get_scalar` asks for one."""
        self._scalar_readers[phase] = read

    def get_scalar(self, name: str) -> ScalarWindow:
        """Return the newest values of a scalar, of which ``current()`` is the last.

        Args:
            name: What steps log, as ``"train/loss"``, over the window of log lines; metrics of the
                newest 100 evaluations, as ``"val/accuracy"``, in a resumed run those that its
                checkpoint knows of; or a learning rate, as ``"train/lr"``, of which only the
                present one is known.

        Raises:
            ConfigError: If there is no such scalar.
        """
        known: dict[str, Iterable[Any]] = {**self._filled(), **self._results}
        if name not in known:
            for phase, read in self._scalar_readers.items():
                known.update({f"{phase}/{key}": [value] for key, value in read().items()})
        if name not in known:
            raise ConfigError(
                f"The scalar {name!r} was asked for; there are "
                f"{', '.join(map(repr, known)) or 'none'}.{did_you_mean(name, known)}"
            )
        return ScalarWindow(known[name])

    def update_info(self, name: str, value: Any) -> None:
        """Remember a fact about the run under ``name``."""
        self._info_readers.pop(name, None)
        self._info[name] = value

    def update_info_dict(self, info_dict: Mapping[str, Any]) -> None:
        """Remember several facts, by name."""
        for name, value in info_dict.items():
            self.update_info(name, value)

    def follow_info(self, name: str, read: Callable[[], Any]) -> None:
        """Read the fact ``name`` by ``read`` when it is asked for."""
        self._info_readers[name] = read

    def get_info(self, name: str, default: Any = None) -> Any:
        """Return the fact ``name``."""
        read = self._info_readers.get(name)
        return self._info.get(name, default) if read is None else read()

    def means(self, phase: str) -> dict[str, float]:
        """Return the mean of every scalar of ``phase`` over its window, and other statistics.

        This waits for the device: call it once per log line.
        """
        windows = self._filled(phase)
        kept = _read(windows)
        newest = {name: values[-self._window_size :] for name, values in kept.items()}
        self.not_finite = [
            name for name, values in newest.items() if not any(map(math.isfinite, values))
        ]
        pattern = self._mean_pattern
        line = {
            name: sum(values) / len(values)
            if pattern is None or pattern.search(name)
            else float(values[-1])
            for name, values in newest.items()
        }
        for one in self._statistics:
            if one.source in newest:
                totals = getattr(windows[one.source], "totals", {})
                line[one.name] = one.of(kept[one.source], totals)
        if phase == "train" and newest:
            self._warn_unknown(newest)
        return line

    def newest(self, phase: str) -> dict[str, float]:
        """Return the newest value of every scalar of ``phase``, by name; this waits too."""
        return {name: float(window[-1]) for name, window in self._filled(phase).items()}

    def begin_epoch(self, epoch: int) -> None:
        """Reset the statistics of an epoch, unless ``epoch`` is resumed in its middle."""
        continues = self._is_resumed and epoch == self._epoch
        self._epoch, self._is_resumed = epoch, False
        if not continues:
            self._end_epoch("train")

    def clear(self, phase: str) -> None:
        """Forget the scalars of ``phase``; statistics of the whole run are kept."""
        self._end_epoch(phase)
        for window in self._filled(phase).values():
            window.clear()

    def state_dict(self) -> dict[str, list[float]]:
        """Return the windows, as numbers: a resumed run averages over the same steps."""
        filled = self._filled()
        state = _read(filled)
        state.update({f"{_RESULT}{name}": list(kept) for name, kept in self._results.items()})
        for name, window in filled.items():
            if isinstance(window, TotalledWindow):
                state["#epoch"] = [self._epoch]
                state.update({f"{span}#{name}": list(t) for span, t in window.totals.items()})
        return state

    def load_state_dict(self, state_dict: Mapping[str, Iterable[float]]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self._epoch, self._is_resumed = -1, True
        for window in self._scalars.values():
            window.clear()
            if isinstance(window, TotalledWindow):
                window.totals = dict.fromkeys(window.totals, NO_VALUES)
        self._results.clear()
        for name, values in state_dict.items():
            span, separator, scalar = name.partition("#")
            if name.startswith(_RESULT):
                kept = deque(map(float, values), maxlen=_MOST_RESULTS)
                self._results[name.removeprefix(_RESULT)] = kept
            elif not separator or "/" in span:
                self._window(name).extend(values)  # unlike append(), not pending
            elif not span:
                (self._epoch,) = map(int, values)
            else:  # after the window of this name
                totals = getattr(self._scalars.get(scalar), "totals", {})
                totals.update({span: tuple(values)} if span in totals else {})

    def _window(self, name: str) -> deque[Any]:
        if name in self._scalars:
            return self._scalars[name]
        about = [one for one in self._statistics if one.source == name.partition("/")[2]]
        size = max([self._window_size, *(n.window for n in about if isinstance(n.window, int))])
        spans = sorted({one.window for one in about if isinstance(one.window, str)})
        window = TotalledWindow(size, spans) if spans else deque[Any](maxlen=size)
        self._scalars[name] = window
        return window

    def _end_epoch(self, phase: str) -> None:
        windows = self._filled(phase)
        _read(windows)
        for window in windows.values():
            if isinstance(window, TotalledWindow) and EPOCH in window.totals:
                window.totals[EPOCH] = NO_VALUES

    def _warn_unknown(self, names: Iterable[str]) -> None:
        """Warn once of statistics about scalars that training does not log."""
        self._num_lines += 1
        if self._num_lines != _PATIENCE or not is_main_process():
            return
        for one in self._statistics:
            if one.source not in names:
                warnings.warn(
                    f"{one.where}.data_src: {one.source!r} has no values so far; there are "
                    f"{', '.join(map(repr, names))}.{did_you_mean(one.source, names)}",
                    stacklevel=3,
                )

    def _filled(self, phase: str | None = None) -> dict[str, deque[Any]]:
        """Return the windows that have values, by name; those of a phase without its prefix."""
        prefix = "" if phase is None else f"{phase}/"
        found = ((name, window) for name, window in self._scalars.items() if window)
        return {name[len(prefix) :]: one for name, one in found if name.startswith(prefix)}


def _read(windows: Mapping[str, deque[Any]]) -> dict[str, list[float]]:
    """Return the values of windows as numbers, and bring their totals up to date."""
    totalled = [one for one in windows.values() if isinstance(one, TotalledWindow)]
    parts = [*windows.values(), *(one.pending for one in totalled)]
    numbers = iter(as_numbers([value for part in parts for value in part]))
    read = [list(islice(numbers, len(part))) for part in parts]
    for window, values in zip(totalled, read[len(windows) :], strict=True):
        window.settle(values)
    return dict(zip(windows, read, strict=False))
