"""Training batches from any position."""

from __future__ import annotations

from collections import deque
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils.data import DataLoader, IterableDataset

from mm_runner._torch_private import stop_workers
from mm_runner.errors import ConfigError

from ._feed import BatchFeed
from ._sampler import announce_epoch, is_endless, samplers_of
from ._seekable import SeekableBatchSampler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["DataPosition", "TrainBatches"]


class DataPosition(NamedTuple):
    """Where a run is in its data.

    ``epoch`` and ``batch`` count passes and, in the one under way, batches of this process.
    ``samples`` is what all processes have drawn of it, ``None`` if batches differ in size; then
    ``num_batches`` per pass, ``None`` if unknown, and ``state``, that of the loader or dataset of
    this process if it has one.
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

    @property
    def is_complete(self) -> bool:
        """Whether the pass has no batch left."""
        return self.num_batches is not None and self.batch >= self.num_batches


class TrainBatches:
    """Draws the batches of training, pass by pass, and knows its position.

    A loader that a config describes begins anywhere at once. One that the user brought resumes by
    its own ``state_dict`` (as torchdata's ``StatefulDataLoader`` has), and so does an iterable
    dataset that this process draws from itself. Of any other the batches before are drawn once more
    and dropped, and the log says so.

    Args:
        loader: Training batches.
        seed: Of the run.
        generator: Of the run's loaders; seeded anew each pass.
        log: Called with what the user ought to know.
        feed: Brings the batches to the device; by default they stay where they are.

    Attributes:
        epoch: Number of the pass under way, counted from 0.
        is_seekable: Whether the loader begins anywhere at once.
    """

    def __init__(
        self,
        loader: Any,
        seed: int,
        generator: torch.Generator | None,
        log: Callable[[str], None],
        feed: BatchFeed | None = None,
    ) -> None:
        self.loader = loader
        self.feed = feed or BatchFeed(loader=loader)
        self._seed, self._generator, self._log = seed, generator, log
        self._sampler: Any = getattr(loader, "batch_sampler", None)
        self.is_seekable = isinstance(self._sampler, SeekableBatchSampler)
        # The dataset only if it is a stream, and no worker draws from a copy of it.
        streams = isinstance(loader, DataLoader) and loader.num_workers == 0
        streams = streams and isinstance(loader.dataset, IterableDataset)
        stateful = [
            one
            for one in (loader, loader.dataset if streams else None)
            if hasattr(one, "state_dict") and hasattr(one, "load_state_dict")
        ]
        self._stateful: Any = stateful[0] if stateful else None
        self._stream: Any = None if self._stateful is loader else self._stateful
        self._own_generators: dict[str, torch.Generator] = {}
        for index, owner in enumerate([loader, *samplers_of(loader)]):
            own = getattr(owner, "generator", None)
            known = [generator, *self._own_generators.values()]
            if isinstance(own, torch.Generator) and own not in known:
                self._own_generators[str(index)] = own
        self.epoch = 0
        self._origin = DataPosition(samples=0)
        self._under_way: Iterator[Any] | None = None

    def seek(self, start: DataPosition) -> None:
        """Let the next iteration of a seekable loader begin at ``start``."""
        self._origin, self.epoch = start, start.epoch
        self.feed.num_given = 0
        self.feed.start = (start.epoch, start.batch, start.samples)
        if self._generator is not None:
            self._generator.manual_seed(self._seed + start.epoch)
        if self.is_seekable:
            self._sampler.seek(start.epoch, start.batch, start.samples)

    def begin(self, epoch: int, start: DataPosition | None = None) -> Iterator[Any]:
        """Begin a pass over the data. What workers there are begin now.

        Args:
            epoch: Number of the pass, counted from 0.
            start: Where in it; by default at its first batch.
        """
        start = (start or DataPosition(samples=0))._replace(epoch=epoch)
        self.seek(start)
        if hasattr(self._stream, "set_epoch"):
            self._stream.set_epoch(epoch)  # a state that was loaded is of its epoch only
        if self._stateful is not None and start.state is not None:
            self._stateful.load_state_dict(start.state["loader"])
            batches = iter(self.loader) if start.is_begun else self._next_pass()
            self.set_generator_states(start.state["generators"])
        elif start.is_complete and self.is_seekable and not self._own_generators:
            batches = iter(())
        else:
            batches = iter(self.loader)
            if self.is_seekable:
                self._sampler.seek(epoch)  # other iterations of the loader begin at the first batch
            elif start.batch:
                self._log(
                    f"{start.batch} batches are drawn and dropped. A train_dataloader given as a "
                    "dict begins anywhere at once; an iterable dataset does with state_dict() and "
                    "load_state_dict(), and num_workers 0."
                )
                deque(islice(batches, start.batch), maxlen=0)
        self._under_way = batches
        return self.feed.over(batches)

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

    def close(self) -> None:
        """End the workers of the pass under way, and those that a loader of ours keeps."""
        keeps_workers = getattr(self.loader, "persistent_workers", False)
        is_ours = getattr(self.loader, "generator", None) is self._generator is not None
        if is_ours or not keeps_workers:
            stop_workers(self._under_way, self.loader if keeps_workers else None)
        self._under_way = None

    def endless(
        self, epoch: int, start: DataPosition | None, begin_pass: Callable[[], None]
    ) -> Iterator[Any]:
        """Go through the data again and again.

        Args:
            epoch: Number of the first pass.
            start: Where in it.
            begin_pass: Called before each further pass.

        Returns:
            The batches, of which the first pass has begun. Drawing raises a ConfigError if a whole
            pass has none.
        """
        announce_epoch(self.loader, epoch)
        return chain(self.begin(epoch, start), self._further_passes(begin_pass))

    def _further_passes(self, begin_pass: Callable[[], None]) -> Iterator[Any]:
        while self.batch:
            begin_pass()
            announce_epoch(self.loader, self.epoch + 1)
            yield from self.begin(self.epoch + 1)
        raise ConfigError(
            "train_dataloader gives no batch: the dataset is empty, or smaller than one batch with "
            "drop_last set. Make batch_size smaller, or drop_last false."
        )

    @property
    def batch(self) -> int:
        """How many batches of this pass were drawn, in this run or in the one it resumes."""
        return self._origin.batch + self.feed.num_given

    @property
    def length(self) -> int | None:
        """Batches in a whole pass; ``None`` if that is unknown, or there is no end."""
        try:
            return None if is_endless(self.loader) else len(self.loader)
        except TypeError:
            return None

    def num_left(self, start: DataPosition) -> int | None:
        """Return how many batches of its pass come after ``start``; ``None`` if unknown."""
        if start.is_complete:
            return 0
        if self.is_seekable:
            return int(self._sampler.num_from(start.batch, start.samples))
        return None if start.num_batches is None else start.num_batches - start.batch

    def position(self, batch: int | None = None) -> DataPosition:
        """Return where the run is after ``batch`` batches of this pass, by default those drawn."""
        batch, origin = self.batch if batch is None else batch, self._origin
        size = self._sampler.num_samples_per_batch if self.is_seekable else None
        samples, num_batches = None, self.length
        if size is not None and origin.samples is not None:
            samples = origin.samples + (batch - origin.batch) * size
        if self.is_seekable and origin.is_begun and num_batches is not None:
            num_batches = origin.batch + self._sampler.num_from(origin.batch, origin.samples)
        return DataPosition(self.epoch, batch, samples, num_batches, self._state())

    def next_pass(self, epoch: int) -> DataPosition:
        """Return the position before pass ``epoch``, behind the one that is done."""
        return DataPosition(epoch, samples=0, state=None if self._stream is None else self._state())

    def _state(self) -> dict[str, Any] | None:
        """Return the state of the loader or dataset, with the generators of the user's."""
        if self._stateful is None:
            return None
        return {"loader": self._stateful.state_dict(), "generators": self.generator_states()}

    def generator_states(self) -> dict[str, Any]:
        """Return the states of generators that the user gave the loader or its samplers.

        Before a pass begins: its order and its workers' seeds come from them.
        """
        return {name: one.get_state() for name, one in self._own_generators.items()}

    def set_generator_states(self, states: Mapping[str, Any]) -> None:
        """Restore what ``generator_states`` returned."""
        for name in states.keys() & self._own_generators.keys():
            self._own_generators[name].set_state(states[name])

    def rescaled(self, position: DataPosition, old: int, new: int) -> DataPosition:
        """Return ``position`` of a run of ``old`` processes for one of ``new``.

        By samples where they are counted. Else by batches; one that was not drawn by all would be
        drawn again.
        """
        if position.is_complete or not position.is_begun:
            return position._replace(state=None)
        size = self._sampler.num_samples_per_batch if self.is_seekable else None
        samples, batch = None, position.batch * old // new
        if size is not None and position.samples is not None:
            samples, batch = position.samples, position.samples // size
        return position._replace(batch=batch, samples=samples, num_batches=None, state=None)
