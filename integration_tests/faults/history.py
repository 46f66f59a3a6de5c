"""What an elastic run has trained on: the attempts, one after the other, and which steps count."""

import json
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path


@dataclass
class Attempt:
    """What was done from one start of the ranks to the next.

    Attributes:
        begun: When, as a number that grows.
        world_size: How many ranks there were.
        steps: By number and rank, ``(epoch, numbers of the samples)``.
    """

    begun: float
    world_size: int
    steps: dict = field(default_factory=dict)

    @property
    def first(self):
        """Number of the first step."""
        return min(self.steps)

    @property
    def last(self):
        """Number of the last step that a rank has told of."""
        return max(self.steps)

    def num_whole_steps(self):
        """Return how many steps every rank has told of."""
        return sum(len(ranks) == self.world_size for ranks in self.steps.values())


def read_attempts(work_dir):
    """Return the attempts in their order; those without a step are not there."""
    attempts = {}
    for file in Path(work_dir).glob("samples_*"):
        rank = int(file.name.rpartition("_")[2])
        for line in file.read_text().splitlines(keepends=True):
            if not line.endswith("\n"):
                continue  # it is being written
            told = json.loads(line)
            begun = told["begun"]
            attempt = attempts.setdefault(begun, Attempt(begun, told["world_size"]))
            attempt.steps.setdefault(told["step"], {})[rank] = told["epoch"], told["samples"]
    return [attempts[begun] for begun in sorted(attempts)]


def count_samples(attempts, end=None):
    """Return how often each sample of each epoch has come: ``{epoch: {number: times}}``.

    A step counts as it was done last: what came after the checkpoint that the next attempt went on
    from is lost.

    Args:
        attempts: In their order.
        end: Number of the first step to leave out.
    """
    last = {number: ranks for attempt in attempts for number, ranks in attempt.steps.items()}
    counts = {}
    for number, ranks in last.items():
        for epoch, samples in ranks.values():
            if end is None or number < end:
                counts.setdefault(epoch, Counter()).update(samples)
    return counts


def places_of_change(attempts):
    """Return where the data went on with another number of ranks.

    Returns:
        For each time ``(ranks before, ranks after, samples done in the epoch, its number)``.
    """
    places = []
    for count, (older, newer) in enumerate(pairwise(attempts), 1):
        if older.world_size != newer.world_size:
            epoch, _ = next(iter(newer.steps[newer.first].values()))
            done = count_samples(attempts[:count], newer.first).get(epoch, Counter())
            places.append((older.world_size, newer.world_size, done.total(), epoch))
    return places
