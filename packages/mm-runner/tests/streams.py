"""A stream of numbers, and ranks that draw from one within this process."""

import json
import logging
from collections import Counter
from itertools import islice
from types import SimpleNamespace

import torch
from torch.utils.data import IterableDataset
from toy import Blobs

from mm_runner.data import (
    BatchFeed,
    DataPosition,
    DataSettings,
    announce_epoch,
    build_dataloader,
)


class Numbers(IterableDataset):
    """``size`` numbers, in another order each epoch; counts how many it has read."""

    def __init__(self, size=40):
        self.size, self.epoch, self.num_read = size, 0, 0

    def __len__(self):
        return self.size

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return self.read_from(0)

    def read_from(self, first):
        for at in range(first, self.size):
            self.num_read += 1
            self.at = at + 1
            yield (at + 7 * self.epoch) % self.size


class Seekable(Numbers):
    """Keeps its place."""

    at = first = 0

    def __iter__(self):
        return self.read_from(self.first)

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = self.first = state["at"]


def as_blob(number):
    """Return one of 40 points, with noise from the random numbers of the process."""
    sample = Blobs(40)[number]
    return {**sample, "inputs": sample["inputs"] + 0.1 * torch.randn(4)}


def feed_of(dataset, rank=0, world_size=1, num_workers=0, batch_size=3, log=None):
    """Return the batches of one of ``world_size`` ranks, none of which has to run."""
    generator = torch.Generator()
    settings = DataSettings(0, generator, rank, world_size)
    options = {"dataset": dataset, "batch_size": batch_size, "num_workers": num_workers}
    loader = build_dataloader(options, settings, shuffle=True, where="train_dataloader")
    loader.sampler.rank, loader.sampler.world_size = rank, world_size
    run = {"device": torch.device("cpu"), "seed": 0, "loader_generator": generator}
    log = log or logging.getLogger("streams")
    return BatchFeed(loader, SimpleNamespace(**run, logger=log, cfg={}))


def draw(make_dataset, world_size, num_workers, start, num_batches=None, batch_size=3):
    """Return what all ranks draw from ``start``, and the position of the first after that."""
    samples, counts = [], []
    for rank in range(world_size):
        feed = feed_of(make_dataset(), rank, world_size, num_workers, batch_size)
        announce_epoch(feed.loader, start.epoch)
        batches = list(islice(feed.begin(start), num_batches))
        counts.append(len(batches))
        samples += [sample for batch in batches for sample in batch]
        if rank == 0:
            state = json.loads(json.dumps(feed.position()._asdict()))  # as through a file
        feed.close()
    assert len(set(counts)) == 1, "the ranks would wait for one another"
    return samples, DataPosition(**state)


def assert_each_once(make_dataset, before, after, at, num_workers=0, epoch=1):
    """Stop a run of ``before`` ranks after ``at`` batches, and resume it with ``after``."""
    start = DataPosition(epoch, samples=0)
    first, position = draw(make_dataset, before, num_workers, start, at)
    if before != after:
        position = feed_of(make_dataset(), 0, after).rescaled(position, before, after)
    rest, _ = draw(make_dataset, after, num_workers, position)
    counts, size = Counter(first + rest), len(make_dataset())
    assert sorted(counts) == list(range(size))
    # Repeated are those from the front that give the ranks equally many.
    num_extra = sum(counts.values()) - size
    assert num_extra < after
    assert all(count == 1 for count in counts.values()) or num_extra > 0
