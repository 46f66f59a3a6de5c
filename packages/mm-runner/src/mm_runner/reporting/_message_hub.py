"""The scalars of a run between two log lines."""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import filterfalse, islice
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from mm_runner.errors import ConfigError, did_you_mean
from mm_runner.evaluator import as_number

_MOST_RESULTS = 100
_RESULT = "result:"  # before the names of metrics
# Facts that are read of the run when they are asked for.
_OF_RUN = ("epoch", "iter", "max_epochs", "max_iters", "seed", "cfg", "experiment_name")


@dataclass(frozen=True)
class Statistic:
    """An entry of ``custom_cfg``: a method over the newest values of a scalar."""

    data_src: str
    method_name: Literal["mean", "min", "max", "current"]
    log_name: str | None = None
    window_size: int = 1

    @property
    def name(self) -> str:
        """Name of the number in a line."""
        return self.log_name or self.data_src


def _as_floats(values: Iterable[Any]) -> list[float]:
    """Return numbers and tensors of one element as floats: one transfer per accelerator."""
    numbers = list(values)
    by_device: dict[torch.device, list[int]] = {}
    for index, value in enumerate(numbers):  # most are floats
        if type(value) is not float and isinstance(value, Tensor) and value.device.type != "cpu":
            by_device.setdefault(value.device, []).append(index)
    for indices in by_device.values():
        tensors = [numbers[index] for index in indices]
        stacked = torch.stack([one.reshape(()) if one.ndim else one for one in tensors])
        for index, number in zip(indices, stacked.tolist(), strict=True):
            numbers[index] = number
    return list(map(float, numbers))


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

    def current(self) -> float:
        """Return the newest value."""
        return self._newest(1)[0]

    def mean(self, window_size: int | None = None) -> float:
        """Return the mean of the newest ``window_size`` values, by default of all that are kept."""
        values = self._newest(window_size)
        return sum(values) / len(values)

    def max(self, window_size: int | None = None) -> float:
        """Return the greatest of these that are numbers."""
        return max(filterfalse(math.isnan, self._newest(window_size)), default=math.nan)

    def min(self, window_size: int | None = None) -> float:
        """Return the least of these that are numbers."""
        return min(filterfalse(math.isnan, self._newest(window_size)), default=math.nan)

    def _newest(self, window_size: int | None) -> list[float]:
        return _as_floats(self._values[-(window_size or 0) :])


class MessageHub:
    """Collects scalars without reading them, and reads all at once when a line is due.

    A tensor stays on its device until :meth:`means` or :meth:`state_dict` brings what is new to the
    host, in one transfer. The window keeps the numbers, and bounds them, however long the run.

    Args:
        window_size: How many of the newest values of a scalar its mean is taken over.
        statistics: What lines say besides, see :class:`LogProcessor`.

    Attributes:
        not_finite: Scalars of which :meth:`means` found no finite value in the window.

    Example:
        >>> hub = MessageHub(window_size=2)
        >>> for loss in (9.0, 1.0, torch.tensor(3.0)):
        ...     hub.update_scalar("train/loss", loss)
        >>> hub.means("train")
        {'loss': 2.0}
    """

    _newest: ClassVar[weakref.ref[MessageHub] | None] = None

    def __init__(self, window_size: int = 10, statistics: Sequence[Statistic] = ()) -> None:
        self.not_finite: list[str] = []
        self._window_size = window_size
        self._statistics = statistics
        # One deque for each scalar, for good: recorders hold on to it.
        self._scalars: dict[str, deque[Any]] = {}
        self._info: dict[str, Any] = {}
        self._run: Any = None
        self._read_rates: Callable[[], Mapping[str, float]] = dict
        MessageHub._newest = weakref.ref(self)

    @classmethod
    def get_current_instance(cls) -> MessageHub:
        """Return that of the newest Runner of this process; without one, an empty one."""
        newest = MessageHub._newest
        return (newest and newest()) or MessageHub()

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
            value = value.detach()  # the graph behind it need not live as long as the window
        self.recorder(name)(value)

    def recorder(self, name: str) -> Callable[[float | Tensor], None]:
        """Return a function that adds a value to a scalar, unchecked, as fast as can be.

        Args:
            name: With its phase, as ``"train/time"``. Of its values, tensors must have one element
                and no graph.
        """
        if name not in self._scalars:
            source = name.partition("/")[2]
            sizes = [one.window_size for one in self._statistics if one.data_src == source]
            size = max([self._window_size, *sizes])
            self._scalars[name] = deque(maxlen=_MOST_RESULTS if name.startswith(_RESULT) else size)
        return self._scalars[name].append

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
                self.recorder(f"{_RESULT}{phase}/{name}")(float(number))

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
        known: dict[str, Iterable[Any]] = {
            key.removeprefix(_RESULT): kept for key, kept in self._filled().items()
        }
        if name not in known:
            known.update({f"train/{key}": [one] for key, one in self._read_rates().items()})
        if name not in known:
            raise ConfigError(
                f"The scalar {name!r} was asked for; there are "
                f"{', '.join(map(repr, known)) or 'none'}.{did_you_mean(name, known)}"
            )
        return ScalarWindow(known[name])

    def update_info(self, name: str, value: Any) -> None:
        """Remember a fact about the run under ``name``."""
        self._info[name] = value

    def update_info_dict(self, info_dict: Mapping[str, Any]) -> None:
        """Remember several facts, by name."""
        self._info.update(info_dict)

    def follow(self, run: Any, read_rates: Callable[[], Mapping[str, float]]) -> None:
        """Read the position and the learning rates of ``run`` whenever they are asked for."""
        self._run, self._read_rates = run, read_rates

    def get_info(self, name: str, default: Any = None) -> Any:
        """Return a fact about the run.

        Args:
            name: What :meth:`update_info` has set; or ``epoch``, ``iter``, ``max_epochs``,
                ``max_iters``, ``seed``, ``cfg``, ``experiment_name``; in a training also
                ``loop_stage`` (``"train"``, ``"val"`` or ``"test"``), ``dataset_meta``, and the
                paths ``last_ckpt`` and ``best_ckpt`` with ``best_score``. Of several metrics, the
                last two end in ``_`` and the metric.
            default: What is returned if there is none.
        """
        if name in _OF_RUN and name not in self._info:
            return getattr(self._run, name, default)
        return self._info.get(name, default)

    def means(self, phase: str) -> dict[str, float]:
        """Return the mean of every scalar of ``phase`` over its window, and other statistics.

        This waits for the device: call it once per log line.
        """
        kept, size = self._read(self._filled(phase)), self._window_size
        newest = {name: values[-size:] for name, values in kept.items()}
        self.not_finite = [
            name for name, values in newest.items() if not any(map(math.isfinite, values))
        ]
        line = {name: sum(values) / len(values) for name, values in newest.items()}
        for one in self._statistics:
            if one.data_src in kept:
                window = ScalarWindow(kept[one.data_src][-one.window_size :])
                line[one.name] = getattr(window, one.method_name)()
        return line

    def clear(self, phase: str) -> None:
        """Forget the scalars of ``phase``."""
        for window in self._filled(phase).values():
            window.clear()

    def state_dict(self) -> dict[str, list[float]]:
        """Return the windows, as numbers: a resumed run averages over the same steps."""
        return self._read(self._filled())

    def load_state_dict(self, state_dict: Mapping[str, Iterable[float]]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self.clear("")
        for name, values in state_dict.items():
            record = self.recorder(name)
            for value in values:
                record(value)

    def _filled(self, phase: str = "") -> dict[str, deque[Any]]:
        """Return the windows that have values, by name; those of a phase without its prefix."""
        prefix = f"{phase}/" if phase else ""
        start, scalars = len(prefix), self._scalars.items()
        return {name[start:]: one for name, one in scalars if one and name.startswith(prefix)}

    def _read(self, windows: Mapping[str, deque[Any]]) -> dict[str, list[float]]:
        """Return the values of windows as numbers."""
        numbers = iter(_as_floats(value for window in windows.values() for value in window))
        read = {}
        for name, window in windows.items():
            read[name] = list(islice(numbers, len(window)))
            window.clear()
            window.extend(read[name])  # no value is brought to the host twice
        return read
