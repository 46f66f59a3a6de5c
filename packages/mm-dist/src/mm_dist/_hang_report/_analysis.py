"""Find out which collective stands still, and who did not come."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mm_dist._hang_report._sample import Sample, Standing
from mm_dist._hang_report._survey import Peer, Survey
from mm_dist._hang_report._timing import plan_timing


@dataclass(frozen=True)
class Standstill:
    """One group in which some ranks wait for others.

    Attributes:
        key: The group, as ``read_counts`` names it.
        numbers: How far each of its ranks has come; those that never spoke are missing.
        front: The number of the newest collective of any of them.
        waiting: The ranks that are in it.
        behind: The others, and those of which nothing is known.
    """

    key: str
    numbers: Mapping[int, int]
    front: int
    waiting: Sequence[int]
    behind: Sequence[int]


def find_standstills(survey: Survey, min_age_s: float) -> list[Standstill]:
    """Return the groups in which some ranks have begun a collective that others have not.

    Args:
        survey: All ranks.
        min_age_s: How long one of the ranks in front must have been there: what is shorter is the
            time between two ranks' answers.
    """
    compared = (_compare(survey, key) for key in sorted(survey.standings))
    found = [standstill for standstill in compared if standstill is not None]
    return [each for each in found if any(age >= min_age_s for age, _ in _ages(survey, each))]


def is_overdue(survey: Survey, standstill: Standstill) -> bool:
    """Return whether a rank has waited so long that its group's timeout is near."""
    num_ranks = len(survey.peers)
    return any(
        age_s >= plan_timing(timeout_s, num_ranks).min_age_s
        for age_s, timeout_s in _ages(survey, standstill)
    )


def _compare(survey: Survey, key: str) -> Standstill | None:
    numbers = survey.numbers[key]
    front = max(numbers.values())
    there = {rank for rank, number in numbers.items() if number == front}
    if len(there) == len(numbers):
        return None
    if not _is_comparable(survey.standings[key].values()):
        there |= _ranks_beside(survey, numbers, there)
    waiting = [rank for rank in numbers if rank in there and survey.peers[rank].is_running]
    behind = [rank for rank in survey.ranks_of(key) if rank not in there]
    return Standstill(key, numbers, front, waiting, behind) if waiting and behind else None


def _is_comparable(standings: Collection[Standing]) -> bool:
    is_recorded = all(standing.recorded is not None for standing in standings)
    return is_recorded or all(standing.is_exact for standing in standings)


def _ranks_beside(survey: Survey, ranks: Iterable[int], there: Collection[int]) -> set[int]:
    """Return the ranks that are in the same call as those in front, whatever torch has counted."""
    places = {_find_call(survey.peers[rank]) for rank in there} - {None}
    return {rank for rank in ranks if _find_call(survey.peers[rank]) in places}


def _find_call(peer: Peer) -> tuple[str, str] | None:
    if not peer.is_running or peer.sample is None or not peer.sample.activity.is_collective:
        return None
    return peer.sample.activity.operation, peer.sample.place


def _ages(survey: Survey, standstill: Standstill) -> Iterator[tuple[float, float]]:
    """Yield for how long each rank has been waiting, and for how long it may."""
    standings = survey.standings[standstill.key]
    for rank in standstill.waiting:
        if is_waiting(survey.peers[rank], standings[rank]):
            yield standings[rank].age_s, standings[rank].timeout_s


def is_waiting(peer: Peer, standing: Standing | None = None) -> bool:
    """Return whether something shows that a rank waits for others.

    An accelerator's host waits wherever it needs a result, or nowhere. There it is enough to have
    come further than others in a ``standing`` that counts collectives only.
    """
    if peer.sample is None:
        return False
    is_counted = standing is not None and standing.is_exact
    return bool(peer.sample.activity.operation) or is_surely_waiting(peer.sample) or is_counted


def is_surely_waiting(sample: Sample) -> bool:
    """Return whether a rank is inside a collective, by its stack or by the flight recorder."""
    return sample.activity.is_collective or any(op.is_pending for op in sample.operations)


def find_roots(standstills: Sequence[Standstill]) -> set[int]:
    """Return the ranks that others wait for, and that wait for nobody themselves.

    Where all wait in a circle, they are all returned.
    """
    behind = {rank for standstill in standstills for rank in standstill.behind}
    waiting = {rank for standstill in standstills for rank in standstill.waiting}
    return behind - waiting or behind
