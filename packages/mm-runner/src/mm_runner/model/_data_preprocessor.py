"""Data preprocessor: moves batches to the device of the model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self, override

from mm_runner.data import map_tensors

__all__ = ["BaseDataPreprocessor"]


class BaseDataPreprocessor(nn.Module):
    """Moves every tensor of a batch to the device this module was moved to.

    Objects with ``to`` and ``cpu``, such as data samples and graphs, are moved too.

    Subclass it to normalise or pad: override :meth:`forward` and call :meth:`cast_data`.

    Args:
        non_blocking: Let copies from pinned memory overlap with computation.

    Example:
        >>> BaseDataPreprocessor()({"x": [torch.ones(2)], "name": "a"})
        {'x': [tensor([1., 1.])], 'name': 'a'}
    """

    def __init__(self, non_blocking: bool = True) -> None:  # noqa: FBT001, FBT002 - MMEngine's
        super().__init__()
        self._non_blocking = non_blocking
        self._device = torch.device("cpu")

    @property
    def device(self) -> torch.device:
        """Where batches go."""
        return self._device

    def cast_data(self, data: Any) -> Any:
        """Return ``data`` with its tensors on :attr:`device`; containers keep their type."""
        if type(data) is dict:
            device = self._device
            for value in data.values():  # no all(): a generator costs as much as the rest
                if type(value) is not Tensor or value.device != device:
                    break
            else:  # most batches on a CPU, and on a device those that were prefetched
                return data.copy()

        def move(tensor: Tensor) -> Tensor:
            return tensor.to(self._device, non_blocking=self._non_blocking)

        def move_object(value: Any) -> Any:
            is_movable = hasattr(value, "to") and hasattr(value, "cpu")  # a time zone is not
            return value.to(self._device) if is_movable else value

        return map_tensors(data, move, move_object)

    def forward(self, data: Any, training: bool = False) -> Any:  # noqa: FBT001, FBT002, ARG002
        """Prepare one batch. ``training`` tells a subclass whether to augment."""
        return self.cast_data(data)

    @override
    def _apply(self, fn: Any, *args: Any, **kwargs: Any) -> Self:
        # .to() and .cuda() come through here. A probe tensor shows the device; a buffer would show
        # up in checkpoints.
        self._device = fn(torch.empty(0, device=self._device)).device
        return super()._apply(fn, *args, **kwargs)  # type: ignore[no-any-return, no-untyped-call]
