"""The batches of training, from any position."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from mm_runner.errors import ConfigError

from ._batch_sampler import SeekableBatchSampler
from ._in_process import begin_batches
from ._position import DataPosition, announce_epoch
from ._prefetch import BatchFeed
from ._sampler import DefaultSampler, InfiniteSampler, is_endless
from ._worker_seed import batch_seed
from ._workers import stop_persistent_workers, stop_workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["TrainBatches"]


class TrainBatches:
    """Draws the batches of training, pass by pass, and knows its position.

    In a loader that a config describes, it begins anywhere in constant time. One that the user
    brought goes on by its own ``state_dict`` (as torchdata's ``StatefulDataLoader`` has), and so
    does an iterable dataset that this process draws from itself. Of any other the batches before
    are drawn once more and dropped, and the log says so.

    Args:
        loader: Training batches.
        seed: Of the run.
        generator: Of the run's loaders; seeded anew each pass.
        tell: Called with what the user ought to know.
        feed: Brings the batches to the device; by default they stay where they are.

    Attributes:
        seed: Of the run, when this was made.
        epoch: Number of the pass under way, counted from 0.
        order: Which order the samples come in, see :meth:`use_order`.
    """

    def __init__(
        self,
        loader: Any,
        seed: int,
        generator: torch.Generator | None,
        tell: Callable[[str], None],
        feed: BatchFeed | None = None,
    ) -> None:
        self.loader = loader
        self.feed = feed or BatchFeed()
        self.seed = self._seed = seed
        self._generator, self._tell = generator, tell
        self._sampler: Any = getattr(loader, "batch_sampler", None)
        self.is_seekable = isinstance(self._sampler, SeekableBatchSampler)
        self._stateful = _stateful_part(loader)
        self.epoch = self.order = 0
        self._seeds: list[tuple[Any, int]] = []  # of samplers, as they came
        self._origin = DataPosition(samples=0)
        # Of a pass that has begun ahead: its number, its batches, the generator behind it, and the
        # iterator that has the workers.
        self._ahead: tuple[int, Iterator[Any], torch.Tensor, Any] | None = None
        self._under_way: Iterator[Any] | None = None

    def seek(self, start: DataPosition) -> None:
        """Let the next iteration of a seekable loader begin at ``start``, whoever iterates."""
        self._origin, self.epoch = start, start.epoch
        self.feed.num_given = 0
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
        self._origin = start = start or DataPosition(epoch, samples=0)
        self.epoch = epoch
        self.feed.num_given = 0
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[3] is not getattr(self.loader, "_iterator", None):
            stop_workers(ahead[3])  # a hook lets others begin, with what it has changed
        elif ahead is not None and ahead[0] == epoch and not start.is_begun:
            self.loader.generator.set_state(ahead[2])
            return self._counted(ahead[1])
        if self._generator is not None:
            self._generator.manual_seed(self._seed + epoch)
        if self.is_seekable:
            self._sampler.seek(epoch, start.batch, start.samples)
            batches = begin_batches(self.loader)
            self._sampler.seek(epoch)  # whoever else draws from the loader sees all of the data
            return self._counted(batches)
        if hasattr(self.stateful_dataset, "set_epoch"):
            self.stateful_dataset.set_epoch(epoch)  # a state that was loaded is of its epoch only
        if self._stateful is not None and start.state is not None:
            return self._counted(self._taken_up(start))
        batches = begin_batches(self.loader)
        if start.batch:
            self._tell(f"{start.batch} batches are drawn and dropped: {self._why_drawn()}")
            deque(islice(batches, start.batch), maxlen=0)
        return self._counted(batches)

    def _taken_up(self, start: DataPosition) -> Iterator[Any]:
        """Let what goes on by its own ``state_dict`` begin at ``start``."""
        assert self._stateful is not None
        at_begin = drawn = self.generator_states()
        # torchdata's loader draws an order anew while it takes up its state, before or after the
        # seed that it draws for workers, so that the passes to come would be of other orders.
        is_in_process = getattr(self.loader, "num_workers", 1) == 0
        draws_otherwise = bool(at_begin) and is_in_process and self._stateful is self.loader
        if draws_otherwise and start.is_begun:
            drawn = self._begin_and_drop()
        self._stateful.load_state_dict(start.state)
        if draws_otherwise and not start.is_begun:
            self._begin_and_drop()
            self.set_generator_states(at_begin)
        batches = iter(self.loader) if start.is_begun else self._next_pass(at_begin)
        if draws_otherwise and start.is_begun:
            self.set_generator_states(drawn)
        return batches

    def _begin_and_drop(self) -> dict[str, Any]:
        """Begin a pass for the states of the generators after that, which are returned."""
        numbers = torch.get_rng_state()
        iter(self.loader)
        torch.set_rng_state(numbers)
        return self.generator_states()

    def _next_pass(self, at_begin: Mapping[str, Any]) -> Iterator[Any]:
        """Go through a pass of a dataset whose state is that behind the pass before."""
        numbers, is_empty = torch.get_rng_state(), True
        for batch in self.loader:
            is_empty = False
            yield batch
        if is_empty:  # it is at its end until it is iterated over anew, as in the run before
            torch.set_rng_state(numbers)
            self.set_generator_states(at_begin)
            yield from self.loader

    def pass_over(self) -> None:
        """Draw from generators of the user's own what a whole pass draws, and no sample."""
        if not self.generator_states():
            return
        generator = getattr(self.loader, "generator", None)
        torch.empty((), dtype=torch.int64).random_(generator=generator)  # as its iterator does
        order = getattr(self.loader, "sampler", ()) if self._sampler is None else self._sampler
        deque(order, maxlen=0)

    def rewind(self) -> None:
        """Forget what was drawn: the data are to begin anew, in the order of the seed."""
        self.use_order(0)
        self.epoch, self._origin = 0, DataPosition(samples=0)
        self.feed.num_given = 0

    def use_order(self, order: int) -> None:
        """Let the samples come in another order than that of the seed, and workers draw otherwise.

        It is for samplers of ours; others go by the epoch, or by their own random numbers.

        Args:
            order: Which one; 0 is that of the seed. To be called before the data begin.
        """
        if order == self.order:
            return
        if self.order == 0:
            self._seeds = [(one, one.seed) for one in self._seeded_samplers()]
        self.order = order
        self._seed = _other_seed(self.seed, order)
        if self.is_seekable:
            self._sampler.use_seed(self._seed)
        for sampler, seed in self._seeds:
            sampler.seed = _other_seed(seed, order)

    def _seeded_samplers(self) -> list[Any]:
        sampler = getattr(self.loader, "sampler", None)
        inner = getattr(self._sampler, "sampler", None)
        candidates = (sampler, inner if inner is not sampler else None)
        return [one for one in candidates if isinstance(one, (DefaultSampler, InfiniteSampler))]

    def begin_ahead(self, epoch: int) -> None:
        """Let workers load the first batches of pass ``epoch``, while a validation goes on.

        It draws from the run's generator what it would draw later, which nobody else notices. Does
        nothing where beginning early could matter: with workers that do not stay over epochs (a
        hook may yet change the dataset), or samplers and generators of the user's own.
        """
        loader, generator = self.loader, self._generator
        if generator is None or loader.generator is not generator or not self.is_seekable:
            return
        kinds = (type(self._sampler.inner), type(getattr(self._sampler.inner, "sampler", None)))
        if kinds != (BatchSampler, DefaultSampler):
            return
        if not (loader.num_workers and loader.persistent_workers):
            return
        before = generator.get_state()
        generator.manual_seed(self._seed + epoch)
        announce_epoch(loader, epoch)
        self._sampler.seek(epoch)
        batches, workers = iter(loader), getattr(loader, "_iterator", None)
        self._ahead = epoch, batches, generator.get_state(), workers
        generator.set_state(before)

    def close(self) -> None:
        """End the workers of the pass under way, and those that a loader of ours keeps."""
        self._ahead = None
        if not getattr(self.loader, "persistent_workers", False):
            stop_workers(self._under_way)
        elif self.keeps_workers:
            stop_persistent_workers(self.loader)
        self._under_way = None

    @property
    def keeps_workers(self) -> bool:
        """Whether workers stay over the passes which are ours to end: a config describes them."""
        is_ours = getattr(self.loader, "generator", None) is self._generator is not None
        return is_ours and bool(getattr(self.loader, "persistent_workers", False))

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
        return self._endless(self.begin(epoch, start), begin_pass)

    def _endless(self, batches: Iterator[Any], begin_pass: Callable[[], None]) -> Iterator[Any]:
        while True:
            yield from batches
            if self.batch == 0:
                raise ConfigError(
                    "train_dataloader gives no batch: the dataset is empty, or smaller than one "
                    "batch with drop_last set. Make batch_size smaller, or drop_last false."
                )
            begin_pass()
            announce_epoch(self.loader, self.epoch + 1)
            batches = self.begin(self.epoch + 1)

    @property
    def batch(self) -> int:
        """How many batches of this pass were drawn, in this run or in the one it goes on from."""
        return self._origin.batch + self.feed.num_given

    @property
    def length(self) -> int | None:
        """Batches in a whole pass; ``None`` if that is unknown, or there is no end."""
        if is_endless(self.loader):
            return None
        try:
            return len(self.loader)
        except TypeError:
            return None

    def num_left(self, start: DataPosition) -> int | None:
        """Return how many batches of its pass come after ``start``; ``None`` if nobody knows."""
        if start.is_complete:
            return 0
        if self.is_seekable:
            return int(self._sampler.num_from(start.batch, start.samples))
        return None if start.num_batches is None else start.num_batches - start.batch

    def position(self, batch: int | None = None) -> DataPosition:
        """Return where the run is after ``batch`` batches of this pass, by default those drawn."""
        batch = self.batch if batch is None else batch
        size = self._sampler.num_samples_per_batch if self.is_seekable else None
        samples = None
        if size is not None and self._origin.samples is not None:
            samples = self._origin.samples + (batch - self._origin.batch) * size
        state = None if self._stateful is None else self._stateful.state_dict()
        return DataPosition(self.epoch, batch, samples, self._num_batches(), state, self.order)

    @property
    def is_stateful(self) -> bool:
        """Whether the loader, or its dataset, goes on by its own ``state_dict``."""
        return self._stateful is not None

    @property
    def stateful_dataset(self) -> Any:
        """The iterable dataset that goes on by its own ``state_dict``; ``None`` if it is not so."""
        return self._stateful if self._stateful is not self.loader else None

    def generator_states(self) -> dict[str, Any]:
        """Return the states of generators that the user gave the loader or its samplers.

        Before a pass begins: its order and its workers' seeds come from them.
        """
        return {name: one.get_state() for name, one in self._own_generators()}

    def set_generator_states(self, states: Mapping[str, Any]) -> None:
        """Go back to what ``generator_states`` returned."""
        for name, generator in self._own_generators():
            if name in states:
                generator.set_state(states[name])

    def _own_generators(self) -> Iterator[tuple[str, torch.Generator]]:
        owners = {
            "loader": self.loader,
            "sampler": getattr(self.loader, "sampler", None),
            "batch_sampler": self._sampler,
            "batch_sampler.sampler": getattr(self._sampler, "sampler", None),
        }
        seen = [self._generator]
        for name, owner in owners.items():
            generator = getattr(owner, "generator", None)
            if isinstance(generator, torch.Generator) and generator not in seen:
                seen.append(generator)
                yield name, generator

    def rescaled(self, position: DataPosition, old: int, new: int) -> DataPosition:
        """Return ``position`` of a run of ``old`` processes for one of ``new``.

        By samples where they are counted. Else by batches; one that was not drawn by all would be
        drawn again.
        """
        if position.is_complete or not position.is_begun:
            return position._replace(state=None)
        size = self._sampler.num_samples_per_batch if self.is_seekable else None
        if size is not None and position.samples is not None:
            batch = position.samples // size
            return position._replace(batch=batch, num_batches=None, state=None)
        batch = position.batch * old // new
        return position._replace(batch=batch, samples=None, num_batches=None, state=None)

    def _counted(self, batches: Iterator[Any]) -> Iterator[Any]:
        self._under_way = batches
        return self.feed.over(batches)

    def _num_batches(self) -> int | None:
        if self.is_seekable and self._origin.is_begun and self.length is not None:
            left = self._sampler.num_from(self._origin.batch, self._origin.samples)
            return int(self._origin.batch + left)
        return self.length

    def _why_drawn(self) -> str:
        dataset = getattr(self.loader, "dataset", None)
        if isinstance(dataset, IterableDataset):
            return (
                f"{type(dataset).__name__} is an iterable dataset. With state_dict() and "
                "load_state_dict() it goes on at once, if num_workers is 0."
            )
        return (
            f"train_dataloader was given as a {type(self.loader).__name__}. Given as a dict it "
            "begins anywhere at once."
        )


def _other_seed(seed: int, order: int) -> int:
    # Of no batch: those count from 0.
    return seed if order == 0 else batch_seed(seed, 0, -2, order) % 2**63


def _stateful_part(loader: Any) -> Any:
    """Return what can tell its position and go on from it: the loader, or its iterable dataset.

    The dataset only if no worker draws from a copy of it.
    """
    candidates = [loader]
    if isinstance(loader, DataLoader) and loader.num_workers == 0:
        candidates += [loader.dataset] if isinstance(loader.dataset, IterableDataset) else []
    for one in candidates:
        if callable(getattr(one, "state_dict", None)) and callable(
            getattr(one, "load_state_dict", None)
        ):
            return one
    return None
