"""Write the report: who did not come, where it is instead, and who waits."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mm_dist._hang_report._analysis import Standstill, find_roots, find_standstills, is_overdue
from mm_dist._hang_report._gathering import is_gathered, tell_gathering
from mm_dist._hang_report._groups import group_of
from mm_dist._hang_report._sentences import tell_alike
from mm_dist._hang_report._survey import Survey
from mm_dist._hang_report._timing import Timing
from mm_dist._hang_report._words import (
    Verbs,
    name_group,
    name_operation,
    tell_wait,
    tell_whereabouts,
)


@dataclass(frozen=True)
class Question:
    """What a report shall answer.

    Attributes:
        reporter: The rank that asks.
        timing: When a wait in the group that the reporter has used last is long.
        is_certain: Whether torch has given up already: something surely stands still.
    """

    reporter: int
    timing: Timing
    is_certain: bool = False


class Report(NamedTuple):
    """What was found.

    Attributes:
        summary: The sentence that matters most.
        text: All of it, for people, in lines.
    """

    summary: str
    text: str


def write_report(survey: Survey, question: Question) -> Report | None:
    """Return the report, or ``None`` if nothing stands still."""
    reporter, timing = question.reporter, question.timing
    standstills = find_standstills(survey, 2 * timing.interval_s)
    is_due = question.is_certain or any(is_overdue(survey, each) for each in standstills)
    if standstills and is_due:
        body = list(_tell_standstills(survey, standstills))
    elif question.is_certain or is_gathered(survey, reporter, timing.min_same_place_s):
        body = list(tell_gathering(survey, reporter))
    else:
        return None
    return Report(body[0].strip(), "\n".join([_headline(survey, question), *body]))


def _headline(survey: Survey, question: Question) -> str:
    limit = f"one may take {question.timing.timeout_s:g} s"
    sample = survey.peers[question.reporter].sample
    ages = [standing.age_s for standing in sample.standings.values()] if sample else []
    since = f"no collective has begun for {min(ages):.1f} s" if ages else "nothing moves"
    return f"mm-dist hang report: {since} ({limit})"


def _tell_standstills(survey: Survey, standstills: Sequence[Standstill]) -> Iterator[str]:
    roots = find_roots(standstills)
    for is_root in (True, False):
        for standstill in standstills:
            ranks = [rank for rank in standstill.behind if (rank in roots) is is_root]
            yield from _tell_behind(survey, standstill, ranks)
    for standstill in standstills:
        yield from _tell_waiting(survey, standstill)


def _tell_behind(survey: Survey, standstill: Standstill, ranks: Sequence[int]) -> Iterator[str]:
    now = time.time()
    group = name_group(survey, standstill.key)

    def tell(rank: int, verbs: Verbs) -> str:
        peer = survey.peers[rank]
        is_known = rank in standstill.numbers or peer.is_gone
        entered = "never entered" if is_known else "may not have entered"
        missing = _name_missing(survey, standstill, standstill.numbers.get(rank))
        return f"{entered} {missing}{group}, {tell_whereabouts(peer, verbs, now)}"

    yield from tell_alike(survey, ranks, tell)


def _name_missing(survey: Survey, standstill: Standstill, number: int | None) -> str:
    front = standstill.front
    missing = front if number is None else min(number + 1, front)
    sample = survey.peers[standstill.waiting[0]].sample
    assert sample is not None, "a rank that waits has said so"
    return name_operation(sample, group_of(standstill.key), missing, front)


def _tell_waiting(survey: Survey, standstill: Standstill) -> Iterator[str]:
    group = name_group(survey, standstill.key)

    def tell(rank: int, verbs: Verbs) -> str:
        sample = survey.peers[rank].sample
        assert sample is not None, "a rank that waits has said so"
        front = standstill.front
        name = name_operation(sample, group_of(standstill.key), front, front)
        return tell_wait(sample, name, verbs) + group

    yield from tell_alike(survey, standstill.waiting, tell)
