"""All ranks' samples side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mm_dist._hang_report._groups import group_of
from mm_dist._hang_report._sample import Sample, Standing


@dataclass(frozen=True)
class Peer:
    """What is known about one rank.

    Attributes:
        rank: Its number among all.
        sample: What it said last; ``None`` if it never did.
        is_answer: Whether it said so when it was asked.
        has_left: Whether it ended its process group.
        last_iteration: The iteration in which it did; ``None`` if it did not, or did not count.
    """

    rank: int
    sample: Sample | None = None
    is_answer: bool = False
    has_left: bool = False
    last_iteration: int | None = None

    @property
    def is_running(self) -> bool:
        """Whether it answered, and goes on."""
        return self.is_answer and self.sample is not None and not self.sample.error

    @property
    def is_gone(self) -> bool:
        """Whether it will certainly enter no collective any more."""
        return self.has_left or (self.sample is not None and bool(self.sample.error))


class Survey:
    """All ranks, and how far each has come in which group.

    Args:
        peers: All ranks.
        members: The ranks of the groups that are known; of others, those that told about them.
        default_group: The name of the group of all ranks.
    """

    def __init__(
        self,
        peers: Mapping[int, Peer],
        members: Mapping[str, Sequence[int]],
        default_group: str,
    ) -> None:
        self.peers = peers
        self.standings: dict[str, dict[int, Standing]] = {}
        for peer in peers.values():
            for key, standing in (peer.sample.standings if peer.sample else {}).items():
                self.standings.setdefault(key, {})[peer.rank] = standing
        self.numbers = {key: _compare(found) for key, found in self.standings.items()}
        self._members = {default_group: list(peers), **members}
        self._default_group = default_group

    def is_default(self, key: str) -> bool:
        """Return whether a group is that of all ranks."""
        return group_of(key) == self._default_group

    def ranks_of(self, key: str) -> Sequence[int]:
        """Return the ranks of a group."""
        return self._members.get(group_of(key)) or list(self.numbers.get(key, self.peers))

    def find_newest(self, rank: int) -> tuple[str, int] | None:
        """Return the group that a rank has used last, and the number of its collective there."""
        sample = self.peers[rank].sample
        if sample is None or not sample.standings:
            return None
        key = min(sample.standings, key=lambda name: sample.standings[name].age_s)
        return key, self.numbers[key][rank]


def _compare(standings: Mapping[int, Standing]) -> dict[int, int]:
    """Return how far each rank of a group has come, in numbers that can be compared and shown."""
    # The recorder counts collectives only; torch's own count can include sends.
    recorded = {rank: s.recorded for rank, s in standings.items() if s.recorded is not None}
    if len(recorded) == len(standings):
        return recorded
    starts = [standing.start for standing in standings.values() if standing.start is not None]
    start = starts[0] if starts else 0
    return {rank: standing.counted - start for rank, standing in standings.items()}
