"""What a limit is before its number of ranks is known."""

from collections.abc import Callable
from dataclasses import dataclass

from scaling.model.cluster import Cluster

MakeCluster = Callable[[int], Cluster]


@dataclass(frozen=True)
class Demand:
    """What so many ranks need of something, and what there is.

    Attributes:
        what: What it is.
        needs: What a number of ranks needs of it; compared with what there is, it only grows.
        has: What there is.
        then: What happens where that is not enough.
        answer: What our packages do about it, or what to do.
    """

    what: str
    needs: Callable[[int], float]
    has: Callable[[int], float]
    then: str
    answer: str


def always(value: float) -> Callable[[int], float]:
    """Return what there is of something, however many ranks there are."""
    return lambda ranks: value  # noqa: ARG005 (called as the others are)
