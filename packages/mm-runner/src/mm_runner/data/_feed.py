"""Batches on their way to the device, and the sample that made one fail."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ._batches import as_channels_last, is_plain, map_tensors
from ._seekable import SeekableBatchSampler

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

__all__ = ["BatchFeed", "failing_sample", "feed_of_run", "has_streams"]

_ATTRIBUTE = "_mm_runner_sample"
# Samples of a failed batch that are collated with each other to find the odd one.
_MAX_COMPARED = 64


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
        ready = self._load(batches)
        while not isinstance(ready, Exception):
            if self._device is not None:  # before the next copy begins, which is not waited for
                self._wait_for_copies(ready[1])
            self.num_given += 1
            ahead = self._load(batches) if self._looks_ahead else None
            yield ready
            ready = self._load(batches) if ahead is None else ahead
        if not isinstance(ready, StopIteration):
            raise ready

    def _load(self, batches: Iterator[Any]) -> tuple[Any, Any] | Exception:
        """Draw a batch and start its copy; return both, or the error of the loader."""
        begin = time.perf_counter()
        try:
            batch = next(batches)
        except Exception as error:  # noqa: BLE001 - raised when its batch is due
            return self._with_sample(error)
        placed = batch
        if self._device is not None:
            if self._stream is None:  # not before there is something to copy
                self._stream = self._module.Stream(self._device)
            with self._module.stream(self._stream):
                placed = map_tensors(batch, self._copy)
        elif self._channels_last:
            placed = map_tensors(batch, as_channels_last)
        self.waited_s += time.perf_counter() - begin
        return batch, placed

    def _copy(self, tensor: Tensor) -> Tensor:
        if not is_plain(tensor) or tensor.device.type != "cpu":
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
            if is_plain(tensor) and tensor.device.type == device:
                # Its memory belongs to the copying stream, which must not reuse it while the
                # present one still computes with it.
                tensor.record_stream(current)
            return tensor

        map_tensors(batch, keep)

    def _with_sample(self, error: Exception) -> Exception:
        """Return the error of the next batch with the sample that it comes from, if it is found."""
        sampler = getattr(self._loader, "batch_sampler", None)
        is_end = isinstance(error, StopIteration)
        # What killed a worker is not read again here: it would kill this process too.
        is_sample = is_end or not getattr(self._loader, "num_workers", 0) or "Caught " in str(error)
        if not isinstance(sampler, SeekableBatchSampler) or not is_sample:
            return error
        (epoch, batch, samples), number = self.start, self.num_given
        if is_end and number >= sampler.num_from(batch, samples):
            return error
        if samples is not None:
            samples += number * (sampler.num_samples_per_batch or 0)
        sample = _find_sample(self._loader, sampler.indices_of(epoch, batch + number, samples))
        if is_end:  # raised by a sample, it would end the epoch
            error = RuntimeError(
                f"StopIteration was raised while it read {sample or 'a sample'}. A dataset with "
                "indices ends by its length: return a sample for each index below it, or raise "
                "another error."
            )
        with suppress(AttributeError):  # an error with __slots__
            setattr(error, _ATTRIBUTE, sample)
        return error


def failing_sample(error: BaseException) -> str | None:
    """Return the sample that made ``error``, such as ``"sample 17 of Points"``.

    It is known for errors of batches that a run draws from a loader built from a config. ``None``
    for any other error, and where reading the batch again does not fail.
    """
    return getattr(error, _ATTRIBUTE, None)


def _find_sample(loader: Any, indices: list[int]) -> str | None:
    """Return the sample of a batch that cannot be read, or collated with the others."""
    samples: list[Any] = []
    for index in indices:
        try:
            samples.append(loader.dataset[index])
        except Exception:  # noqa: BLE001 - it was raised before
            return f"sample {index} of {type(loader.dataset).__name__}"

    samples = samples[:_MAX_COMPARED]

    def num_fitting(sample: Any) -> int:
        count = 0
        for other in samples:
            with suppress(Exception):  # which of the two comes first may matter
                loader.collate_fn([sample, other])
                loader.collate_fn([other, sample])
                count += 1
        return count

    counts = list(map(num_fitting, samples))
    if len(set(counts)) < 2:
        return None
    odd = indices[counts.index(min(counts))]
    return f"sample {odd} of {type(loader.dataset).__name__}"


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
