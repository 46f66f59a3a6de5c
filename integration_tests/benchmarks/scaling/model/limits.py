"""What breaks first as ranks are added, and what there is to do about it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from scaling.model.cluster import Cluster
from scaling.model.constants import Constants
from scaling.model.job import Job
from scaling.model.limit_network import network_limits
from scaling.model.limit_storage import storage_limits
from scaling.model.limit_store import store_limits
from scaling.model.limit_types import Demand

# Beyond this number of ranks nothing is looked for.
MOST_RANKS = 2**20


@dataclass(frozen=True)
class Limit:
    """Something that does not hold for any number of ranks.

    Attributes:
        what: What is used up.
        first: The smallest number of ranks with which it is; ``None`` if none up to 2**20 is.
        then: What happens.
        answer: What our packages do about it, or what to do.
    """

    what: str
    first: int | None
    then: str
    answer: str


def find_limits(job: Job, constants: Constants) -> list[Limit]:
    """Return all limits that apply to the job, those that come first at the beginning."""

    def make_cluster(ranks: int) -> Cluster:
        return Cluster(ranks, job.ranks_per_node, constants)

    demands: Iterable[Demand] = (
        *store_limits(job, constants, make_cluster),
        *network_limits(job, constants, make_cluster),
        *storage_limits(job, constants, make_cluster),
    )
    limits = [
        Limit(each.what, _first_excess(each.needs, each.has), each.then, each.answer)
        for each in demands
    ]
    return sorted(limits, key=lambda limit: limit.first or MOST_RANKS + 1)


def _first_excess(needs: Callable[[int], float], has: Callable[[int], float]) -> int | None:
    """Return the smallest number of ranks whose need is not met.

    Numbers are doubled until one is too large; from half of it on needs grow.
    """
    high = 1
    while needs(high) <= has(high):
        high *= 2
        if high > MOST_RANKS:
            return None
    low = high // 2 + 1
    while low < high:
        middle = (low + high) // 2
        if needs(middle) > has(middle):
            high = middle
        else:
            low = middle + 1
    return high
