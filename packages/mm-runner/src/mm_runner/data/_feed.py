"""Batches of a run: drawn from any position, and copied to the device."""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from itertools import chain, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from mm_runner._torch_private import stop_workers
from mm_runner.errors import ConfigError

from ._batches import is_plain, map_tensors
from ._sampler import SeekableBatchSampler, announce_epoch, is_endless, samplers_of
from ._stream import StreamDataset, StreamLoader, inexact_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from mm_runner.run_view import RunView

_ATTRIBUTE = "_mm_runner_sample"


class DataPosition(NamedTuple):
    """Position of a run in its data.

    ``epoch`` and ``batch`` count passes and, in the current one, batches of this process, of
    ``num_batches``. ``samples`` is what all processes have drawn of it; ``state`` that of this
    process's loader or dataset, or a place of the stream. Each is ``None`` if unknown.
    """

    epoch: int = 0
    batch: int = 0
    samples: int | None = None
    num_batches: int | None = None
    state: Any = None

    @property
    def is_begun(self) -> bool:
        """Whether the pass is under way."""
        return self.batch > 0 or bool(self.samples)


class BatchFeed:
    """Draws the batches of a loader, copies them to the device, and tracks its position.

    A loader built from a config begins anywhere at once. One that the user brought resumes by its
    ``state_dict`` (as torchdata's ``StatefulDataLoader`` has), and so does an iterable dataset
    without workers. Of any other the batches before are drawn once more and dropped. The log says
    how a stream will be resumed as it begins.

    On an accelerator a batch is copied on a stream of its own. If the loader has workers and no
    ``state_dict``, the next batch is on its way, but not counted, while the present one is used.

    Args:
        loader: Gives the batches.
        runner: The run: its device, seed, generator of loaders, log, and ``cfg.device_prefetch``.

    Attributes:
        epoch: Number of the current pass, counted from 0.
        is_seekable: Whether the loader begins anywhere at once.
        waited_s: Seconds that this process has spent loading batches and starting copies.
    """

    def __init__(self, loader: Any, runner: RunView) -> None:
        self.loader, self._runner = loader, runner
        self.epoch, self.waited_s = 0, 0.0
        self._origin, self._num_given = DataPosition(samples=0), 0
        self._sampler: Any = getattr(loader, "batch_sampler", None)
        self.is_seekable = isinstance(self._sampler, SeekableBatchSampler)
        # Of all processes; None if batches differ in size.
        self._step_size: int | None = getattr(self._sampler, "num_samples_per_batch", None)
        self._num_workers = getattr(loader, "num_workers", 0)
        # What saves its position: the loader, or an iterable dataset that no worker has a copy of.
        self._stateful: Any = loader if hasattr(loader, "load_state_dict") else None
        self._stream: Any = None
        self._dataset: Any = loader.dataset if isinstance(loader, DataLoader) else None
        self._inexact = inexact_state(self._dataset)
        is_exact = hasattr(self._dataset, "load_state_dict") and self._inexact is None
        is_stream = isinstance(self._dataset, IterableDataset) and is_exact
        if is_stream and self._stateful is None and not self._num_workers:
            self._stateful = self._stream = self._dataset
        self._is_announced = False
        # Generators that the user gave the loader or its samplers, each once.
        given = [getattr(one, "generator", None) for one in (loader, *samplers_of(loader))]
        own = [one for one in given if isinstance(one, torch.Generator)]
        self._own_generators = [x for x in dict.fromkeys(own) if x is not runner.loader_generator]
        self._under_way: Iterator[Any] | None = None
        prefetches = runner.cfg.get("device_prefetch", True) and has_streams(runner.device)
        self._device = runner.device if prefetches else None
        self._module: Any = getattr(torch, runner.device.type) if prefetches else None
        self._copies: Any = None  # the stream, made when there is something to copy
        # Without workers the next batch would be loaded by this process, from its random numbers;
        # and a loader with a state_dict would return the position of the batch after.
        has_state = hasattr(loader, "state_dict")
        self._looks_ahead = prefetches and self._num_workers > 0 and not has_state

    # Passes over the data.

    def seek(self, start: DataPosition) -> None:
        """Let the next iteration of a seekable loader begin at ``start``."""
        self._origin, self._num_given, self.epoch = start, 0, start.epoch
        self._runner.loader_generator.manual_seed(self._runner.seed + start.epoch)
        if self.is_seekable:
            self._sampler.seek(start.epoch, start.batch, start.samples)
        if isinstance(self._dataset, StreamDataset):
            self._dataset.start = None if start.state is None else start.state["loader"]

    def begin(self, start: DataPosition) -> Iterator[Any]:
        """Begin a pass over the data at ``start``. Its workers begin now."""
        self.seek(start)
        self._announce_resume()
        if hasattr(self._stream, "set_epoch"):
            self._stream.set_epoch(start.epoch)  # a state that was loaded is of its epoch only
        if self._stateful is not None and start.state is not None:
            self._stateful.load_state_dict(start.state["loader"])
            batches = iter(self.loader) if start.is_begun else self._next_pass()
            self.set_generator_states(start.state["generators"])
        else:
            batches = iter(self.loader)
            if self.is_seekable:  # other iterations of the loader begin at the first batch
                self._sampler.seek(start.epoch)
            elif start.batch:
                self._runner.logger.info(
                    f"{start.batch} batches are drawn and dropped. A train_dataloader given as a "
                    "dict begins anywhere at once; an iterable dataset does with state_dict() and "
                    "load_state_dict() as the source of a StreamDataset, or with num_workers 0."
                )
                deque(islice(batches, start.batch), maxlen=0)
        self._under_way = batches
        return map(itemgetter(1), self.pairs(batches))

    def _announce_resume(self) -> None:
        """Log, before the run relies on it, how its stream resumes within an epoch."""
        is_announced, self._is_announced = self._is_announced, True
        if is_announced or not isinstance(self._dataset, (IterableDataset, StreamDataset)):
            return
        where, log = "train_dataloader", self._runner.logger
        if isinstance(self._dataset, StreamDataset) and self.is_seekable:
            log.info(f"{where}: {self._dataset.how_it_resumes()}")
        elif self._stateful is None:
            log.info(
                f"{where}: a run resumed within an epoch draws its batches before again. As the "
                "source of a StreamDataset the data resume exactly, on any number of processes."
            )
        elif self._inexact is not None:
            log.warning(
                f"{where}: resuming within an epoch will not be exact: {type(self._dataset)} is "
                f"resumed by its state, and {self._inexact}. Let it be the source of a "
                "StreamDataset, without that."
            )

    def _next_pass(self) -> Iterator[Any]:
        """Iterate over the next pass of a dataset whose state is at the end of the previous one."""
        numbers, generators, is_empty = torch.get_rng_state(), self.generator_states(), True
        for batch in self.loader:
            is_empty = False
            yield batch
        if is_empty:  # it ended the previous pass, and starts the next when iterated over again
            torch.set_rng_state(numbers)
            self.set_generator_states(generators)
            yield from self.loader

    def endless(self, start: DataPosition, begin_pass: Callable[[], None]) -> Iterator[Any]:
        """Begin a pass at ``start``, and further ones after it, each with ``begin_pass()`` first.

        Drawing raises a ConfigError if a whole pass has no batch.
        """
        announce_epoch(self.loader, start.epoch)
        return chain(self.begin(start), self._further_passes(begin_pass))

    def _further_passes(self, begin_pass: Callable[[], None]) -> Iterator[Any]:
        while self.batch:
            begin_pass()
            announce_epoch(self.loader, self.epoch + 1)
            yield from self.begin(DataPosition(self.epoch + 1, samples=0))
        raise ConfigError(
            "train_dataloader gives no batch: the dataset is empty, or smaller than one batch with "
            "drop_last set. Make batch_size smaller, or drop_last false."
        )

    def close(self) -> None:
        """End the workers of the current pass, and those that a loader of the run keeps."""
        keeps_workers = getattr(self.loader, "persistent_workers", False)
        is_ours = getattr(self.loader, "generator", None) is self._runner.loader_generator
        if is_ours or not keeps_workers:
            stop_workers(self._under_way, self.loader if keeps_workers else None)
        self._under_way = None

    # The position.

    @property
    def batch(self) -> int:
        """How many batches of this pass were drawn, in this run or in the one it resumes."""
        return self._origin.batch + self._num_given

    @property
    def length(self) -> int | None:
        """Batches in a whole pass; ``None`` if that is unknown, or there is no end."""
        try:
            return None if is_endless(self.loader) else len(self.loader)
        except TypeError:
            return None

    def num_left(self, start: DataPosition) -> int | None:
        """Return how many batches of its pass come after ``start``; ``None`` if unknown."""
        if self.is_seekable:
            return int(self._sampler.num_from(start.batch, start.samples))
        return None if start.num_batches is None else start.num_batches - start.batch

    def position(self, batch: int | None = None) -> DataPosition:
        """Return the position after ``batch`` batches of this pass, by default those drawn."""
        batch, origin = self.batch if batch is None else batch, self._origin
        samples, num_batches = None, self.length
        if self._step_size is not None and origin.samples is not None:
            samples = origin.samples + (batch - origin.batch) * self._step_size
        if self.is_seekable and origin.is_begun and num_batches is not None:
            num_batches = origin.batch + self._sampler.num_from(origin.batch, origin.samples)
        state = self._state()
        if isinstance(self.loader, StreamLoader):
            place = self.loader.place(self.epoch, samples)
            state = origin.state if place is None else {"loader": place, "generators": {}}
        return DataPosition(self.epoch, batch, samples, num_batches, state)

    def next_pass(self, epoch: int) -> DataPosition:
        """Return the position at the start of pass ``epoch``, after a whole pass."""
        return DataPosition(epoch, samples=0, state=None if self._stream is None else self._state())

    def _state(self) -> dict[str, Any] | None:
        """Return the state of the loader or dataset, and of the user's generators."""
        if self._stateful is None:
            return None
        return {"loader": self._stateful.state_dict(), "generators": self.generator_states()}

    def generator_states(self) -> dict[str, Tensor]:
        """Return the states of generators that the user gave the loader or its samplers."""
        return {str(index): one.get_state() for index, one in enumerate(self._own_generators)}

    def set_generator_states(self, states: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`generator_states` returned."""
        for index, generator in enumerate(self._own_generators):
            if str(index) in states:
                generator.set_state(states[str(index)])

    def rescaled(self, position: DataPosition, old: int, new: int) -> DataPosition:
        """Return ``position`` of a run of ``old`` processes for one of ``new``.

        Where samples are not counted, batches that were not drawn by all are drawn again, and so is
        the whole epoch of an iterable dataset, which splits its samples in a way of its own.
        """
        if not position.is_begun:
            return position._replace(state=None)
        if isinstance(self._dataset, IterableDataset):
            return DataPosition(position.epoch, samples=0)
        samples, batch = None, position.batch * old // new
        if self._step_size is not None and position.samples is not None:
            samples, batch = position.samples, position.samples // self._step_size
        # A place of the whole stream is one for every process.
        state = position.state if isinstance(self._dataset, StreamDataset) else None
        return position._replace(batch=batch, samples=samples, num_batches=None, state=state)

    # Batches on their way to the device.

    def pairs(self, batches: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
        """Yield each of ``batches`` as it is, and on the device: metrics may want it on the host.

        An error of the loader is raised when its batch is due, not while it is prefetched.
        """
        ready = self._load(batches)
        while not isinstance(ready, Exception):
            if self._device is not None:  # before the next copy begins, which is not waited for
                self._wait_for_copies(ready[1])
            self._num_given += 1
            ahead = self._load(batches) if self._looks_ahead else None
            yield ready
            ready = self._load(batches) if ahead is None else ahead
        if not isinstance(ready, StopIteration):
            raise ready

    def _load(self, batches: Iterator[Any]) -> tuple[Any, Any] | Exception:
        """Draw a batch and start its copy; return both, or the error of the loader."""
        begin = time.perf_counter()
        try:
            batch = placed = next(batches)
        except Exception as error:  # noqa: BLE001 - raised when its batch is due
            return self._with_sample(error)
        if self._device is not None:
            self._copies = self._copies or self._module.Stream(self._device)
            with self._module.stream(self._copies):
                placed = map_tensors(batch, self._copy)
        self.waited_s += time.perf_counter() - begin
        return batch, placed

    def _copy(self, tensor: Tensor) -> Tensor:
        if not is_plain(tensor) or tensor.device.type != "cpu":
            return tensor  # the model's data preprocessor moves what is left
        return tensor.to(self._device, non_blocking=True)

    def _wait_for_copies(self, batch: Any) -> None:
        """Let the current stream wait for all copies so far; ``batch`` may be used on it then."""
        assert self._device is not None
        kind, current = self._device.type, self._module.current_stream(self._device)
        current.wait_stream(self._copies)

        def keep(tensor: Tensor) -> Tensor:
            if is_plain(tensor) and tensor.device.type == kind:
                # Its memory belongs to the copying stream, which must not reuse it while the
                # current one still computes with it.
                tensor.record_stream(current)
            return tensor

        map_tensors(batch, keep)

    def _with_sample(self, error: Exception) -> Exception:
        """Attach the sample that caused ``error`` of the next batch to it, if it is found."""
        # What killed a worker is not read again here: it would kill this process too.
        is_sample = not self._num_workers or "Caught " in str(error)
        if isinstance(error, StopIteration) or not self.is_seekable or not is_sample:
            return error
        samples = self._origin.samples
        if samples is not None:
            samples += self._num_given * (self._step_size or 0)
        indices = self._sampler.indices_of(self._origin.epoch, self.batch, samples)
        with suppress(AttributeError):  # an error with __slots__
            setattr(error, _ATTRIBUTE, _find_sample(self.loader, indices))
        return error


def failing_sample(error: BaseException) -> str | None:
    """Return the sample that made ``error``, such as ``"sample 17 of Points"``, if it is known.

    That is for errors of batches that a run draws from a loader built from a config.
    """
    return getattr(error, _ATTRIBUTE, None)


def _find_sample(loader: Any, indices: list[int]) -> str | None:
    """Return the sample of a batch that cannot be read."""
    for index in indices:
        try:
            loader.dataset[index]
        except Exception:  # noqa: BLE001 - it was raised before
            return f"sample {index} of {type(loader.dataset).__name__}"
    return None


def has_streams(device: torch.device) -> bool:
    """Return whether torch can copy beside the work of ``device``."""
    module = getattr(torch, device.type, None)
    needed = ("Stream", "stream", "current_stream")
    return device.type != "cpu" and all(hasattr(module, name) for name in needed)
