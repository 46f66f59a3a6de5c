"""The scalars of a run between two log lines."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from mm_runner.errors import ConfigError, did_you_mean

from ._scalar_window import ScalarWindow

__all__ = ["MessageHub"]


class MessageHub:
    """Collects scalars without reading them, and reads all at once when a line is due.

    A tensor stays on its device until :meth:`means` brings the whole window to the host in one
    transfer per device. Memory is bounded by the window, however long the run.

    Args:
        window_size: How many of the newest values of a scalar its mean is taken over.

    Example:
        >>> hub = MessageHub(window_size=2)
        >>> for loss in (9.0, 1.0, torch.tensor(3.0)):
        ...     hub.update_scalar("train/loss", loss)
        >>> hub.means("train")
        {'loss': 2.0}
    """

    def __init__(self, window_size: int = 10) -> None:
        self.window_size = window_size
        # One deque for each scalar, for good: recorders hold on to it. It is empty before the first
        # value.
        self._scalars: dict[str, deque[Any]] = {}
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

    def get_scalar(self, name: str) -> ScalarWindow:
        """Return the newest values of a scalar, of which ``current()`` is the last.

        Raises:
            ConfigError: If there is no such scalar.
        """
        known = self._filled()
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
        """Return the mean of every scalar of ``phase`` over its window, by name.

        This waits for the device: call it once per log line.
        """
        windows = self._of_phase(phase)
        tensors = [value for window in windows.values() for value in window if _is_tensor(value)]
        on_host = iter(_read(tensors))
        return {
            name: sum(next(on_host) if _is_tensor(v) else v for v in window) / len(window)
            for name, window in windows.items()
        }

    def newest(self, phase: str) -> dict[str, float]:
        """Return the newest value of every scalar of ``phase``, by name; this waits too."""
        return {name: float(window[-1]) for name, window in self._of_phase(phase).items()}

    def state_dict(self) -> dict[str, list[float]]:
        """Return the windows, as numbers: a run that goes on averages over the same steps."""
        windows = self._filled()
        tensors = [one for window in windows.values() for one in window if _is_tensor(one)]
        on_host = iter(_read(tensors))
        return {
            name: [next(on_host) if _is_tensor(value) else value for value in window]
            for name, window in windows.items()
        }

    def load_state_dict(self, state_dict: Mapping[str, Iterable[float]]) -> None:
        """Go on from what :meth:`state_dict` returned."""
        for window in self._scalars.values():
            window.clear()
        for name, values in state_dict.items():
            self._window(name).extend(values)

    def clear(self, phase: str) -> None:
        """Forget the scalars of ``phase``."""
        for window in self._of_phase(phase).values():
            window.clear()

    def _window(self, name: str) -> deque[Any]:
        window = self._scalars.get(name)
        if window is None:
            window = self._scalars[name] = deque(maxlen=self.window_size)
        return window

    def _filled(self) -> dict[str, deque[Any]]:
        return {name: window for name, window in self._scalars.items() if window}

    def _of_phase(self, phase: str) -> dict[str, deque[Any]]:
        prefix = f"{phase}/"
        return {k[len(prefix) :]: v for k, v in self._filled().items() if k.startswith(prefix)}


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def _as_scalar(tensor: Tensor) -> Tensor:
    # Most are so already; asking is cheaper than an operator that changes nothing.
    scalar = tensor if tensor.ndim == 0 else tensor.reshape(())
    return scalar if scalar.dtype is torch.float32 else scalar.float()


def _read(tensors: list[Tensor]) -> list[float]:
    """Bring scalars to the host: one transfer for each device they lie on."""
    values: list[float] = [0.0] * len(tensors)
    by_device: dict[torch.device, list[int]] = {}
    for index, tensor in enumerate(tensors):
        by_device.setdefault(tensor.device, []).append(index)
    for indices in by_device.values():
        stacked = torch.stack([_as_scalar(tensors[index]) for index in indices])
        for index, value in zip(indices, stacked.tolist(), strict=True):
            values[index] = value
    return values
