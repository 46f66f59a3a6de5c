"""Copies of batches to the device, beside its work."""

from __future__ import annotations

import time
from collections.abc import Iterator
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ._batches import map_tensors
from ._failing_sample import attach_sample
from ._seekable import SeekableBatchSampler

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

__all__ = ["BatchFeed", "as_channels_last", "feed_of_run", "has_streams"]


class BatchFeed:
    """Draws batches, copies them to the device beside its work, and times both.

    On an accelerator a batch is copied on a stream of its own, which the present step does not wait
    for if the loader has pinned it. With ``looks_ahead`` the next batch is drawn and under way
    before the present one is handed out; it counts as given only when it is handed out. On the CPU
    batches are handed on as they are.

    Args:
        device: Where batches go. Without streams, as on the CPU, nothing is copied.
        looks_ahead: Draw one batch ahead. Not for a loader whose position is asked for after each
            batch, or which draws from this process's random numbers.
        channels_last: Lay out tensors of four dimensions and floating type so.
        loader: Gives the batches; an error of a sample then names it.

    Attributes:
        start: Epoch, batch and samples where the batches begin in the loader, as in
            :meth:`SeekableBatchSampler.seek`.
        num_given: Batches handed out since :meth:`over` was last called.
        waited_s: Seconds that this process has spent loading batches and starting copies.

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
        loader: Any = None,
    ) -> None:
        self._device = device if device is not None and has_streams(device) else None
        self._module: Any = getattr(torch, self._device.type) if self._device else None
        self._stream: Any = None
        self._looks_ahead = looks_ahead and self._device is not None
        self._channels_last = channels_last
        self._loader = loader
        self.start: tuple[int, int, int | None] = (0, 0, 0)
        self.waited_s = 0.0
        self.num_given = 0

    def over(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield each of ``batches``, on the device."""
        return map(itemgetter(1), self.pairs(batches))

    def pairs(self, batches: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
        """Yield each of ``batches`` as it is, and on the device: metrics may want it on the host.

        An error of the loader is raised when its batch is due, not while it is prefetched.
        """
        self.num_given = 0
        copies = self._device is not None
        ahead: tuple[Any, Any] | None = None
        error: Exception | None = None
        while error is None:
            ready, ahead = ahead, None
            begin = time.perf_counter()
            try:
                batch = next(batches)
            except Exception as raised:  # noqa: BLE001 - raised when its batch is due
                error = self._explained(raised, self.num_given + (ready is not None))
            if ready is not None:
                self._wait_for_copies(ready[1])  # before the next begins, which is not waited for
            if error is None:
                placed = self._place(batch) if copies or self._channels_last else batch
                ahead = batch, placed
            self.waited_s += time.perf_counter() - begin
            if ahead is not None and not self._looks_ahead:
                ready, ahead = ahead, None
                if copies:
                    self._wait_for_copies(ready[1])
            if ready is not None:
                self.num_given += 1
                yield ready
        if not isinstance(error, StopIteration):
            raise error

    def _explained(self, error: Exception, number: int) -> Exception:
        """Return ``error``, raised for batch ``number``, with the sample that it comes from."""
        sampler = getattr(self._loader, "batch_sampler", None)
        is_end = isinstance(error, StopIteration)
        # What killed a worker is not read again here: it would kill this process too.
        is_sample = not getattr(self._loader, "num_workers", 0) or "Caught " in str(error)
        if not isinstance(sampler, SeekableBatchSampler) or not (is_sample or is_end):
            return error
        epoch, batch, samples = self.start
        if is_end and number >= sampler.num_from(batch, samples):
            return error
        if samples is not None:
            samples += number * (sampler.num_samples_per_batch or 0)
        indices = sampler.indices_of(epoch, batch + number, samples)
        return attach_sample(error, self._loader.dataset, indices) if indices else error

    def _place(self, batch: Any) -> Any:
        """Start the copy of ``batch``, and return what it will be."""
        if self._device is None:
            return map_tensors(batch, as_channels_last)
        if self._stream is None:  # not before there is something to copy
            self._stream = self._module.Stream(self._device)
        with self._module.stream(self._stream):
            return map_tensors(batch, self._copy)

    def _copy(self, tensor: Tensor) -> Tensor:
        if not _is_plain(tensor) or tensor.device.type != "cpu":
            return tensor  # the model's data preprocessor moves what is left
        copied = tensor.to(self._device, non_blocking=True)
        return as_channels_last(copied) if self._channels_last else copied

    def _wait_for_copies(self, batch: Any) -> None:
        """Let the present stream wait for all copies so far; ``batch`` may be used on it then."""
        assert self._device is not None
        device = self._device.type
        current = self._module.current_stream(self._device)
        current.wait_stream(self._stream)

        def keep(tensor: Tensor) -> Tensor:
            if _is_plain(tensor) and tensor.device.type == device:
                # Its memory belongs to the copying stream, which must not reuse it while the
                # present one still computes with it.
                tensor.record_stream(current)
            return tensor

        map_tensors(batch, keep)


def feed_of_run(runner: RunView, loader: Any) -> BatchFeed:
    """Return what feeds the batches of ``loader`` to a run, as its configuration says."""
    # Without workers the next batch would be loaded by this process, from its random numbers; and
    # a loader with a state_dict would return the position of the batch after.
    can_look_ahead = getattr(loader, "num_workers", 0) > 0 and not hasattr(loader, "state_dict")
    return BatchFeed(
        runner.device if runner.cfg.get("device_prefetch", True) else None,
        looks_ahead=can_look_ahead,
        channels_last=bool(runner.cfg.get("channels_last")),
        loader=loader,
    )


def has_streams(device: torch.device) -> bool:
    """Return whether torch can copy beside the work of ``device``."""
    module = getattr(torch, device.type, None)
    needed = ("Stream", "stream", "current_stream")
    return device.type != "cpu" and all(hasattr(module, name) for name in needed)


def as_channels_last(tensor: Tensor) -> Tensor:
    """Return ``tensor``, laid out with channels last if it can be a batch of images."""
    if tensor.ndim == 4 and tensor.is_floating_point() and _is_plain(tensor):
        return tensor.contiguous(memory_format=torch.channels_last)
    return tensor


def _is_plain(tensor: Tensor) -> bool:
    """Return whether ``tensor`` is one block of memory, not a sparse or a nested one."""
    return tensor.layout is torch.strided and not tensor.is_nested
