"""When to look, when to ask, and when to speak."""

from dataclasses import dataclass
from functools import lru_cache

_LONGEST_INTERVAL_S = 1.0
_SHORTEST_INTERVAL_S = 0.05
_LONGEST_LEAD_S = 5.0
# A report reads two keys per rank from the store, about 0.1 ms each over a network.
_LEAD_PER_RANK_S = 0.0005


@dataclass(frozen=True)
class Timing:
    """The times of a watcher, all in seconds, and all of the same clock.

    Attributes:
        timeout_s: How long torch lets a collective take.
        interval_s: From one look to the next.
        quiet_s: After this time without any new collective, a rank begins to listen for requests.
        due_s: After this time without any new collective, a waiting rank makes the report.
        collect_s: How long the report waits for the answers of other ranks.
    """

    timeout_s: float
    interval_s: float
    quiet_s: float
    due_s: float
    collect_s: float

    @property
    def min_age_s(self) -> float:
        """How long a rank must have waited to be worth a report.

        Less than ``due_s``: ranks look at different moments.
        """
        return self.due_s - 2 * self.interval_s

    @property
    def min_same_place_s(self) -> float:
        """For how long a waiting rank's stack has been the same then: since it was quiet."""
        return self.min_age_s - self.quiet_s


@lru_cache(maxsize=16)
def plan_timing(timeout_s: float, world_size: int) -> Timing:
    """Return the times that fit a timeout.

    The report begins early enough to be out before torch raises, or NCCL aborts the process.

    Example:
        >>> plan_timing(600.0, 8).due_s
        594.996
    """
    interval_s = min(max(timeout_s / 20, _SHORTEST_INTERVAL_S), _LONGEST_INTERVAL_S)
    lead_s = min(_LONGEST_LEAD_S + _LEAD_PER_RANK_S * world_size, timeout_s / 4)
    return Timing(timeout_s, interval_s, timeout_s / 4, timeout_s - lead_s, 0.75 * lead_s)
