"""Batches on their way from the loader to the device."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ._map_tensors import map_tensors

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

__all__ = ["BatchFeed", "as_channels_last", "feed_of_run", "has_streams"]

_END = object()


class BatchFeed:
    """Draws batches, copies them to the device beside its work, and times both.

    On an accelerator a batch is copied on a stream of its own, from pinned memory, which the
    present step does not wait for. With ``looks_ahead`` the next batch is drawn and under way
    before the present one is handed out. What draws them counts those handed out: a batch that was
    only prefetched is not done. On the CPU batches are handed on as they are.

    Args:
        device: Where batches go. Without streams, as on the CPU, nothing is copied.
        looks_ahead: Draw one batch ahead. Not for a loader whose position is asked for after each
            batch, or which draws from this process's random numbers.
        channels_last: Lay out tensors of four dimensions and floating type so.

    Attributes:
        num_given: Batches handed out since :meth:`over` was last called.
        loaded_s: Seconds that this process waited for the loader so far.
        copied_s: Seconds that it took to pin batches and to start their copies.

    Example:
        >>> feed = BatchFeed(torch.device("cuda"), looks_ahead=True)  # doctest: +SKIP
        >>> for batch in feed.over(iter(loader)):  # doctest: +SKIP
        ...     model.train_step(batch, optim_wrapper)
    """

    def __init__(
        self,
        device: torch.device | None = None,
        *,
        looks_ahead: bool = False,
        channels_last: bool = False,
    ) -> None:
        self._copier: _Copier | None = None
        if device is not None and has_streams(device):
            self._copier = _Copier(device, channels_last=channels_last)
        self._looks_ahead = looks_ahead and self._copier is not None
        self._channels_last = channels_last
        self.loaded_s = self.copied_s = 0.0
        self.num_given = 0

    def over(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield each of ``batches``, on the device."""
        self.num_given = 0
        if self._copier is None and not self._channels_last:  # nothing to do but to look at a clock
            return self._timed(batches)
        return (placed for _, placed in self.pairs(batches))

    def pairs(self, batches: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
        """Yield each of ``batches`` as it is, and on the device: metrics may want it on the host.

        An error of the loader is raised when its batch is due, not while it is prefetched.
        """
        if not self._looks_ahead:
            for batch in self._timed(batches):
                yield batch, self._arrived(self._begin(batch))
            return
        batch = self._draw(batches)
        begun = self._begin(batch)
        while batch is not _END:
            if isinstance(batch, _Failure):
                raise batch.error
            following = self._draw(batches)
            placed = self._arrived(
                begun
            )  # before the next copy is begun, which it need not wait for
            begun = self._begin(following)
            self.num_given += 1
            yield batch, placed
            batch = following

    def _timed(self, batches: Iterator[Any]) -> Iterator[Any]:
        clock = time.perf_counter
        begin = clock()
        for batch in batches:
            self.loaded_s += clock() - begin
            self.num_given += 1
            yield batch
            begin = clock()

    def _draw(self, batches: Iterator[Any]) -> Any:
        begin = time.perf_counter()
        try:
            return next(batches, _END)
        except Exception as error:  # noqa: BLE001 - raised when its batch is due
            return _Failure(error)
        finally:
            self.loaded_s += time.perf_counter() - begin

    def _begin(self, batch: Any) -> Any:
        if batch is _END or isinstance(batch, _Failure):
            return batch
        begin = time.perf_counter()
        if self._copier is not None:
            batch = self._copier.begin(batch)
        elif self._channels_last:
            batch = map_tensors(batch, as_channels_last)
        self.copied_s += time.perf_counter() - begin
        return batch

    def _arrived(self, begun: Any) -> Any:
        return begun if self._copier is None else self._copier.end(begun)


def feed_of_run(runner: RunView, loader: Any) -> BatchFeed:
    """Return what feeds the batches of ``loader`` to a run, as its configuration says."""
    # Without workers the next batch would be loaded by this process, from its random numbers; and
    # a loader that tells its position itself would tell that of the batch after.
    can_look_ahead = getattr(loader, "num_workers", 0) > 0 and not hasattr(loader, "state_dict")
    return BatchFeed(
        runner.device if runner.cfg.get("device_prefetch", True) else None,
        looks_ahead=can_look_ahead,
        channels_last=bool(runner.cfg.get("channels_last")),
    )


class _Failure:
    def __init__(self, error: Exception) -> None:
        self.error = error


class _Copier:
    """Copies batches on a stream of its own."""

    def __init__(self, device: torch.device, *, channels_last: bool) -> None:
        self._device = device
        self._module: Any = getattr(torch, device.type)
        self._stream: Any = None
        self._channels_last = channels_last
        self._can_pin = True

    def begin(self, batch: Any) -> Any:
        """Start the copy of ``batch``, and return what it will be."""
        if self._stream is None:  # not before there is something to copy
            self._stream = self._module.Stream(self._device)
        with self._module.stream(self._stream):
            return map_tensors(batch, self._copy)

    def end(self, batch: Any) -> Any:
        """Let the present stream wait for all copies so far; ``batch`` may be used on it then."""
        current = self._module.current_stream(self._device)
        current.wait_stream(self._stream)

        def keep(tensor: Tensor) -> Tensor:
            if _is_plain(tensor) and tensor.device.type == self._device.type:
                # Its memory belongs to the copying stream, which must not reuse it while the
                # present one still computes with it.
                tensor.record_stream(current)
            return tensor

        return map_tensors(batch, keep)

    def _copy(self, tensor: Tensor) -> Tensor:
        if not _is_plain(tensor) or tensor.device.type != "cpu":
            return tensor  # the model's data preprocessor moves what is left
        copied = self._pinned(tensor).to(self._device, non_blocking=True)
        return as_channels_last(copied) if self._channels_last else copied

    def _pinned(self, tensor: Tensor) -> Tensor:
        if not self._can_pin or tensor.numel() == 0:
            return tensor
        try:
            return tensor if tensor.is_pinned() else tensor.pin_memory()
        except RuntimeError:  # no memory to lock, or a device that knows none: slower, as right
            self._can_pin = False
            return tensor


def has_streams(device: torch.device) -> bool:
    """Tell whether torch can copy beside the work of ``device``."""
    module = getattr(torch, device.type, None)
    needed = ("Stream", "stream", "current_stream")
    return device.type != "cpu" and all(hasattr(module, name) for name in needed)


def as_channels_last(tensor: Tensor) -> Tensor:
    """Return ``tensor``, laid out with channels last if it can be a batch of images."""
    if tensor.ndim == 4 and tensor.is_floating_point() and _is_plain(tensor):
        return tensor.contiguous(memory_format=torch.channels_last)
    return tensor


def _is_plain(tensor: Tensor) -> bool:
    """Tell whether ``tensor`` is one block of memory, not a sparse or a nested one."""
    return tensor.layout is torch.strided and not tensor.is_nested
