"""Streamed data: one global order of samples, shared by all processes and workers."""

from __future__ import annotations

import copy
import os
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset
from typing_extensions import override

from mm_runner._torch_private import hidden_worker
from mm_runner.errors import ConfigError
from mm_runner.registry import DATASETS, build_from_cfg, check_integer, short_repr

from ._batches import resolve_function
from ._sampler import DefaultSampler, draw_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_END = object()


class StreamDataset(Dataset[Any]):
    """Samples of a stream, for any number of processes and workers, with exact resume.

    Each worker of each process reads the stream from front to back, and keeps its own share: what
    all have drawn is always the front part of the stream. Samples of others are read, but not
    transformed. So a run resumes after the last sample that was drawn, on any number of processes
    and workers. The loader takes no sampler and no ``shuffle``.

    Args:
        source: Gives the same samples in the same order in every process: an iterable, or a config
            of one. ``set_epoch(epoch)`` chooses the order of an epoch, counted from 0. Optional are
            ``state_dict()`` and ``load_state_dict()`` of the place after the latest sample, or
            ``__getitem__`` with a number in the order of the epoch; with either, resuming seeks.
        length: Samples in an epoch, at most as many as the stream has; by default ``len(source)``.
        transform: Of a sample, such as one that decodes it; a function, or its name or config.
        shuffle_window: Size of the windows of successive samples that are shuffled. Every worker
            holds one window of undecoded samples, unless the source has ``__getitem__``.
        seed: Of that shuffle, with the epoch.

    Raises:
        ConfigError: If the source is not iterable, or the length is missing or not positive.

    Example:
        >>> dataset = StreamDataset(["a", "b", "c"], transform=str.upper)
        >>> len(dataset), dataset[1]
        (3, 'B')
    """

    def __init__(
        self,
        source: Any,
        length: int | None = None,
        transform: Any = None,
        shuffle_window: int = 1,
        seed: int = 0,
    ) -> None:
        is_cfg = isinstance(source, Mapping)
        self.source: Any = build_from_cfg(source, DATASETS, where="source") if is_cfg else source
        is_stream = isinstance(self.source, IterableDataset)
        self.is_indexed = hasattr(self.source, "__getitem__") and not is_stream
        if not (hasattr(self.source, "__iter__") or self.is_indexed):
            raise ConfigError(f"source: an iterable is needed, got {short_repr(source)}.")
        if length is None:
            try:
                length = len(self.source)
            except TypeError as error:
                raise ConfigError(
                    f"length: {type(self.source).__name__} has no length, and a run needs to know "
                    "its epochs. Give length, the number of samples of an epoch."
                ) from error
        check_integer("length", length, least=1)
        check_integer("shuffle_window", shuffle_window, least=1)
        self.length, self.shuffle_window, self.seed = length, shuffle_window, seed
        self.transform: Callable[[Any], Any] | None = resolve_function(transform)
        has_state = all(hasattr(self.source, x) for x in ("state_dict", "load_state_dict"))
        self.inexact = inexact_state(self.source)
        self.has_state = has_state and not self.is_indexed and self.inexact is None
        self._first_state = copy.deepcopy(self.source.state_dict()) if self.has_state else None
        self.start: Mapping[str, Any] | None = None
        self._samples: Iterator[Any] | None
        # By epoch and number: a window's samples in the order of the source, and the shuffled one.
        self._window: tuple[tuple[int, int], list[Any]] | None
        self._order: tuple[tuple[int, int], list[int]] | None
        self._window_start: dict[str, Any] | None
        self._close()

    def __len__(self) -> int:
        return self.length

    @override
    def __getitem__(self, index: int | tuple[int, int]) -> Any:
        """Return a sample by its number in epoch 0, or by the epoch and its number."""
        epoch, at = index if isinstance(index, tuple) else (0, index)
        if not 0 <= at < self.length:
            raise IndexError(f"Sample {at} of a stream of {self.length}.")
        sample = self._read(epoch, at)
        return sample if self.transform is None else self.transform(sample)

    def __getstate__(self) -> dict[str, Any]:
        # For a worker, which opens its own.
        return {**vars(self), "_samples": None, "_window": None}

    def state(self) -> dict[str, Any] | None:
        """Return a place at or before the next sample, as ``start`` takes it; or ``None``."""
        if not self.has_state or self._samples is None:
            return None
        return self._window_start if self.shuffle_window > 1 else self._here()

    def how_it_resumes(self) -> str:
        """Return a line for the log about how a run resumes within an epoch."""
        name = type(self.source).__name__
        if self.is_indexed or self.has_state:
            return f"{name} seeks: a resumed run continues within an epoch at once."
        reason = self.inexact or "it has no state_dict() and load_state_dict()"
        return (
            f"{name} cannot seek, as {reason}: a resumed run reads the samples of the epoch that "
            "were drawn before again, without transform, which takes time in proportion."
        )

    def _read(self, epoch: int, at: int) -> Any:
        size = self.shuffle_window
        number, place = divmod(at, size)
        begin, end = number * size, min((number + 1) * size, self.length)
        if self._process != os.getpid():  # a fork shares the positions of open files
            self._close()
            shared = getattr(self.source, "_epoch", None)
            if isinstance(shared, torch.Tensor):
                # Hugging Face's datasets share it among the workers, which set it all at once.
                self.source._epoch = shared.clone()  # noqa: SLF001
        if size > 1:
            if self._order is None or self._order[0] != (epoch, number):
                order = draw_order(end - begin, self.seed, epoch, number)
                self._order = ((epoch, number), order)
            place = self._order[1][place]
        if self.is_indexed:
            if self._epoch != epoch:
                self._set_epoch(epoch)
            return self.source[begin + place]
        if self._window is None or self._window[0] != (epoch, number):
            self._seek(epoch, begin)
            if self.has_state and size > 1:
                self._window_start = self._here()
            self._window = ((epoch, number), [self._next() for _ in range(begin, end)])
        return self._window[1][place]

    def _seek(self, epoch: int, at: int) -> None:
        if self._samples is None or self._epoch != epoch or self._at > at:
            self._open(epoch, at)
        while self._at < at:
            self._next()

    def _open(self, epoch: int, at: int) -> None:
        """Iterate over the source from the start, or from ``start`` if that is nearer."""
        self._samples, start = None, self.start
        if start is None or start["epoch"] != epoch or start["at"] > at:
            start = {"at": 0, "state": self._first_state}
        self._set_epoch(epoch)
        if self.has_state:
            self.source.load_state_dict(copy.deepcopy(start["state"]))
            if start["at"] == 0:  # the state of the first epoch
                self._set_epoch(epoch)
        with hidden_worker():
            self._samples = iter(self.source)
        self._at = start["at"] if self.has_state else 0

    def _next(self) -> Any:
        assert self._samples is not None
        with hidden_worker():  # sources that split samples by worker would give a part of them
            sample = next(self._samples, _END)
        if sample is _END:
            raise ConfigError(
                f"The stream ended after {self._at} samples of an epoch, and its length is "
                f"{self.length}. Give a length that it has, and let it give all samples in each "
                "process, none split by rank."
            )
        self._at += 1
        return sample

    def _here(self) -> dict[str, Any]:
        state = copy.deepcopy(self.source.state_dict())  # some return one that they change
        return {"epoch": self._epoch, "at": self._at, "state": state}

    def _set_epoch(self, epoch: int) -> None:
        if hasattr(self.source, "set_epoch"):
            self.source.set_epoch(epoch)
        self._epoch = epoch

    def _close(self) -> None:
        self._process, self._epoch, self._at = os.getpid(), -1, 0
        self._samples = self._window = self._order = self._window_start = None


class StreamSampler(DefaultSampler):
    """Splits a stream over the ranks, as pairs of the epoch and the number of a sample."""

    def __init__(self, dataset: StreamDataset, seed: int | None = None) -> None:
        super().__init__(dataset, shuffle=False, seed=seed)

    @override
    def _draw(self, positions: range, epoch: int) -> Iterator[Any]:
        size = len(self.dataset)
        return ((epoch, position % size) for position in positions)


class _Marked(NamedTuple):
    """A batch, with a place of the stream that the worker has read it from."""

    batch: Any
    place: Any


class MarkingCollate:
    """Collate function that sends the place of the stream along with a batch."""

    def __init__(self, collate: Callable[[Any], Any], dataset: StreamDataset) -> None:
        self.collate, self.dataset = collate, dataset

    def __call__(self, samples: Any) -> _Marked:
        return _Marked(self.collate(samples), self.dataset.state())


class StreamLoader(DataLoader[Any]):
    """Loader of a :class:`StreamDataset` that keeps the places which come with its batches."""

    places: Sequence[Any] = ()

    @override
    def __iter__(self) -> Any:
        self.places = places = deque[Any](maxlen=3)  # one batch may be drawn ahead
        return _Unmarked(super().__iter__(), places)

    def place(self, epoch: int, samples: int | None) -> Any:
        """Return the last place before sample ``samples`` of ``epoch``, if any."""
        for place in reversed(self.places):
            if place is not None and place["epoch"] == epoch and place["at"] <= (samples or 0):
                return place
        return None


class _Unmarked:
    """Batches alone; other attributes are those of the loader's own iterator."""

    def __init__(self, batches: Any, places: deque[Any]) -> None:
        self._batches, self._places = batches, places

    def __iter__(self) -> _Unmarked:
        return self

    def __len__(self) -> int:
        return len(self._batches)

    def __next__(self) -> Any:
        batch, place = next(self._batches)
        self._places.append(place)
        return batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


def inexact_state(source: Any) -> str | None:
    """Return why the ``state_dict`` of a Hugging Face dataset loses samples; ``None`` if not."""
    formatting = getattr(source, "_formatting", None)
    if getattr(formatting, "is_table", False) is True:
        return "its state may skip a batch of tables"
    parts = [getattr(source, "_ex_iterable", None)]
    for part in parts:
        if "BufferShuffled" in type(part).__name__:
            return "its state is without the samples in the shuffle buffer"
        inner = getattr(part, "ex_iterable", None)
        parts += [*([] if inner is None else [inner]), *(getattr(part, "ex_iterables", None) or [])]
    return None
