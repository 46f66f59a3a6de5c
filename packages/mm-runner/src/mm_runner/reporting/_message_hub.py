"""The scalars of a run between two log lines."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from torch import Tensor

from mm_runner.errors import ConfigError, did_you_mean
from mm_runner.evaluator import as_number

from ._host_numbers import as_numbers
from ._line_values import LineValues
from ._scalar_window import ScalarWindow
from ._statistics import Statistic
from ._totals import EPOCH, Total, TotalledWindow

__all__ = ["MessageHub"]

_MOST_RESULTS = 100
# Before the names of metrics in a state.
_RESULT = "result:"


class MessageHub:
    """Collects scalars without reading them, and reads all at once when a line is due.

    A tensor stays on its device until :meth:`means` brings the whole window to the host in one
    transfer per device; a second one comes only where a statistic has more values than were kept
    since the last line. Memory is bounded by the window, however long the run.

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
        self._line = LineValues(window_size, statistics, mean_pattern)
        self._epoch = -1  # none has begun
        self._goes_on = False  # from a state, which may be of the middle of an epoch
        # One deque for each scalar, for good: recorders hold on to it. It is empty before the first
        # value.
        self._scalars: dict[str, deque[Any]] = {}
        self._results: dict[str, deque[float]] = {}  # of evaluations
        self._scalar_readers: dict[str, Callable[[], Mapping[str, float]]] = {}
        self._info: dict[str, Any] = {}
        self._readers: dict[str, Callable[[], Any]] = {}

    def update_scalar(self, name: str, value: float | Tensor) -> None:
        """Add a value: a number, or a tensor of one element, which is not read now.

        Args:
            name: With its phase, as ``"train/loss"``.
            value: The newest value.

        Raises:
            ConfigError: If a tensor has more elements than one.
        """
        if isinstance(value, Tensor):
            if value.numel() != 1:
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

    def update_info(self, name: str, value: Any) -> None:
        """Remember a fact about the run under ``name``."""
        self._readers.pop(name, None)
        self._info[name] = value

    def update_scalars(self, log_dict: Mapping[str, float | Tensor]) -> None:
        """Add a value to each of several scalars, by name."""
        for name, value in log_dict.items():
            self.update_scalar(name, value)

    def update_results(self, phase: str, metrics: Mapping[str, Any]) -> None:
        """Add the metrics of an evaluation, for :meth:`get_scalar`; log lines have them anyway.

        Args:
            phase: ``"val"`` or ``"test"``.
            metrics: By name; what is no number, nor an array or tensor of one, is left out.
        """
        for name, value in metrics.items():
            number = as_number(value)
            if number is not None:
                kept = self._results.setdefault(f"{phase}/{name}", deque(maxlen=_MOST_RESULTS))
                kept.append(float(number))

    def follow_scalars(self, phase: str, read: Callable[[], Mapping[str, float]]) -> None:
        """Let ``read`` tell scalars of ``phase`` whenever one is asked for: a step costs nothing.

        Of these only the present value is known. Log lines do not have them.
        """
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
            known.update(self._followed())
        if name not in known:
            raise ConfigError(
                f"The scalar {name!r} was asked for; there are "
                f"{', '.join(map(repr, known)) or 'none'}.{did_you_mean(name, known)}"
            )
        return ScalarWindow(known[name])

    def update_info_dict(self, info_dict: Mapping[str, Any]) -> None:
        """Remember several facts, by name."""
        for name, value in info_dict.items():
            self.update_info(name, value)

    def follow_info(self, name: str, read: Callable[[], Any]) -> None:
        """Let ``read`` tell the fact ``name`` whenever it is asked for: a step costs nothing."""
        self._readers[name] = read

    def get_info(self, name: str, default: Any = None) -> Any:
        """Return the fact ``name``."""
        read = self._readers.get(name)
        return self._info.get(name, default) if read is None else read()

    def means(self, phase: str) -> dict[str, float]:
        """Return the mean of every scalar of ``phase`` over its window, and other statistics.

        This waits for the device: call it once per log line.

        Returns:
            Numbers by name.

        Raises:
            ConfigError: If a statistic has the name of another scalar, or is no number.
        """
        windows = self._of_phase(phase)
        if phase == "train" and windows:
            self._line.tell_unknown(list(windows))
        newest = _settle(windows)
        size = self._line.window_size
        self.not_finite = [
            name for name, values in newest.items() if not any(map(math.isfinite, values[-size:]))
        ]
        totals = {
            name: window.totals
            for name, window in windows.items()
            if isinstance(window, TotalledWindow)
        }
        return self._line.of(newest, totals)

    def begin_epoch(self, epoch: int) -> None:
        """Let statistics of an epoch begin anew.

        They go on after :meth:`load_state_dict`, if ``epoch`` is the one that was under way.
        """
        goes_on = self._goes_on and epoch == self._epoch
        self._epoch, self._goes_on = epoch, False
        if goes_on:
            return
        _settle(self._totalled("train/"))
        self._forget_epoch("train/")

    def newest(self, phase: str) -> dict[str, float]:
        """Return the newest value of every scalar of ``phase``, by name; this waits too."""
        return {name: float(window[-1]) for name, window in self._of_phase(phase).items()}

    def state_dict(self) -> dict[str, list[float]]:
        """Return the windows, as numbers: a run that goes on averages over the same steps."""
        state = _settle(self._filled())
        state.update({f"{_RESULT}{name}": list(kept) for name, kept in self._results.items()})
        totalled = self._totalled()
        if totalled:
            state["#epoch"] = [self._epoch]
        for name, window in totalled.items():
            state.update({f"{k}#{name}": total.as_list() for k, total in window.totals.items()})
        return state

    def load_state_dict(self, state_dict: Mapping[str, Iterable[float]]) -> None:
        """Go on from what :meth:`state_dict` returned."""
        self._epoch, self._goes_on = -1, True
        for window in self._scalars.values():
            window.clear()
            if isinstance(window, TotalledWindow):
                window.totals = {kind: Total() for kind in window.totals}
        self._results.clear()
        for name, values in state_dict.items():
            if name.startswith(_RESULT):
                kept = deque(map(float, values), maxlen=_MOST_RESULTS)
                self._results[name.removeprefix(_RESULT)] = kept
                continue
            kind, is_of_statistics, scalar = name.partition("#")
            if not is_of_statistics or "/" in kind:
                self._window(name).extend(values)
            elif not kind:
                (self._epoch,) = map(int, values)
            else:
                self._restore_total(scalar, kind, Total(*values))

    def clear(self, phase: str) -> None:
        """Forget the scalars of ``phase``; statistics of the whole run go on."""
        _settle(self._totalled(f"{phase}/"))
        for window in self._of_phase(phase).values():
            window.clear()
        self._forget_epoch(f"{phase}/")

    def _window(self, name: str) -> deque[Any]:
        window = self._scalars.get(name)
        if window is None:
            window = self._scalars[name] = self._line.new_window(name)
        return window

    def _totalled(self, prefix: str = "") -> dict[str, TotalledWindow]:
        return {
            name: window
            for name, window in self._scalars.items()
            if isinstance(window, TotalledWindow) and name.startswith(prefix)
        }

    def _forget_epoch(self, prefix: str) -> None:
        for window in self._totalled(prefix).values():
            if EPOCH in window.totals:
                window.totals[EPOCH] = Total()

    def _restore_total(self, name: str, kind: str, total: Total) -> None:
        window = self._window(name)
        if isinstance(window, TotalledWindow) and kind in window.totals:
            window.totals[kind] = total

    def _followed(self) -> dict[str, list[float]]:
        return {
            f"{phase}/{name}": [value]
            for phase, read in self._scalar_readers.items()
            for name, value in read().items()
        }

    def _filled(self) -> dict[str, deque[Any]]:
        return {name: window for name, window in self._scalars.items() if window}

    def _of_phase(self, phase: str) -> dict[str, deque[Any]]:
        prefix = f"{phase}/"
        return {k[len(prefix) :]: v for k, v in self._filled().items() if k.startswith(prefix)}


def _settle(windows: Mapping[str, deque[Any]]) -> dict[str, list[float]]:
    """Return the values of windows as numbers, and bring their totals up to date."""
    totalled = [one for one in windows.values() if isinstance(one, TotalledWindow)]
    if not totalled:  # as a rule: half of the time that it takes else
        numbers = iter(as_numbers([value for window in windows.values() for value in window]))
        return {name: list(islice(numbers, len(window))) for name, window in windows.items()}
    parts = {name: list(window) for name, window in windows.items()}
    unread = [one.unread() for one in totalled]
    listed = [*parts.values(), *unread]
    # What is pending stands in the window as well, mostly, and is read once.
    distinct = {id(value): value for values in listed for value in values}
    known = dict(zip(distinct, as_numbers(list(distinct.values())), strict=True))
    for window, values in zip(totalled, unread, strict=True):
        window.settle([known[id(value)] for value in values])
    return {name: [known[id(value)] for value in values] for name, values in parts.items()}
