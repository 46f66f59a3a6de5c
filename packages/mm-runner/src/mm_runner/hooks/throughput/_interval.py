"""What a process measured between two reports, and what all of them did."""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from statistics import median

import torch

import mm_dist

__all__ = ["Measured", "Report", "gather_report"]


@dataclass
class Measured:
    """Sums over the steps of one process since the last report.

    Attributes:
        steps: Training steps.
        samples: Samples in them.
        tokens: Tokens in them, 0 if they are not counted.
        elapsed_s: Seconds they took, waiting for data included, validations not.
        waited_s: Seconds of waiting for data.
        forward_s: Seconds of one forward, 0 if that is not known.
        memory: Most memory in use so far, in bytes.
    """

    steps: float = 0.0
    samples: float = 0.0
    tokens: float = 0.0
    elapsed_s: float = 0.0
    waited_s: float = 0.0
    forward_s: float = 0.0
    memory: float = 0.0

    @property
    def own_s(self) -> float:
        """Seconds per step that this process does not share with the others."""
        return self.waited_s / max(self.steps, 1.0) + self.forward_s


@dataclass(frozen=True)
class Report:
    """What all processes did.

    Attributes:
        ranks: What each measured.
    """

    ranks: list[Measured]

    @property
    def samples_per_s(self) -> float:
        """Samples per second over all processes."""
        return self._per_s([one.samples for one in self.ranks])

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second over all processes."""
        return self._per_s([one.tokens for one in self.ranks])

    @property
    def data_wait_share(self) -> float:
        """Part of the time that the process that waited longest for data waited."""
        return max(one.waited_s / max(one.elapsed_s, 1e-9) for one in self.ranks)

    @property
    def memory(self) -> float:
        """Most memory in use on one process, in bytes."""
        return max(one.memory for one in self.ranks)

    @property
    def slowest_rank(self) -> int:
        """The process that takes longest for what it does by itself."""
        own = [one.own_s for one in self.ranks]
        return own.index(max(own))

    @property
    def lag_s(self) -> float:
        """Seconds per step by which that process is behind the median."""
        own = [one.own_s for one in self.ranks]
        return max(own) - median(own)

    @property
    def step_s(self) -> float:
        """Seconds per step."""
        return max(one.elapsed_s / max(one.steps, 1.0) for one in self.ranks)

    def _per_s(self, counts: list[float]) -> float:
        return sum(counts) / max(*(one.elapsed_s for one in self.ranks), 1e-9)


def gather_report(measured: Measured) -> Report:
    """Return what all processes measured; all must call this at the same step."""
    mine = torch.tensor(astuple(measured), dtype=torch.float64)
    if mm_dist.get_world_size() == 1:
        return Report([measured])
    gathered = torch.stack(mm_dist.all_gather(mine)).tolist()
    names = [field.name for field in fields(Measured)]
    return Report([Measured(**dict(zip(names, row, strict=True))) for row in gathered])
