"""Text of the report: which rank did not come, where it is instead, and which ranks wait."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from mm_dist._message import format_ranks
from mm_dist.diagnose._sample import RANDOM_START, Sample, group_of

_LONGEST_INTERVAL_S, _SHORTEST_INTERVAL_S = 1.0, 0.05
# A report reads two keys per rank from the store, about 0.1 ms each over a network.
_LONGEST_LEAD_S, _LEAD_PER_RANK_S = 5.0, 0.0005
_NUM_SHOWN = 8


class Timing(NamedTuple):
    """When to look and report, in seconds without a new collective."""

    timeout_s: float  # how long torch lets a collective take
    interval_s: float  # from one look to the next
    quiet_s: float  # when a rank begins to publish where it is
    due_s: float  # when a waiting rank makes the report
    collect_s: float  # how long the report waits for other ranks

    @property
    def min_age_s(self) -> float:
        """How long a rank must have waited to be reported: ranks look at different moments."""
        return self.due_s - 2 * self.interval_s

    @property
    def min_same_place_s(self) -> float:
        """For how long the stack of a waiting rank has not changed by then."""
        return self.min_age_s - self.quiet_s


def plan_timing(timeout_s: float, world_size: int) -> Timing:
    """Return the times that fit a timeout: the report is out before torch raises."""
    interval_s = min(max(timeout_s / 20, _SHORTEST_INTERVAL_S), _LONGEST_INTERVAL_S)
    lead_s = min(_LONGEST_LEAD_S + _LEAD_PER_RANK_S * world_size, timeout_s / 4)
    return Timing(timeout_s, interval_s, timeout_s / 4, timeout_s - lead_s, 0.75 * lead_s)


class Peer(NamedTuple):
    """What is known about one rank."""

    sample: Sample | None = None  # what it published last
    is_answer: bool = False  # it still publishes, or has published its error
    has_left: bool = False

    @property
    def is_running(self) -> bool:
        """Whether it answered and is still running."""
        return self.is_answer and self.sample is not None and not self.sample.error

    @property
    def is_gone(self) -> bool:
        """Whether the rank has exited."""
        return self.has_left or (self.sample is not None and bool(self.sample.error))


class Survey(NamedTuple):
    """All ranks in order, the ranks of known groups, and the name of the group of all ranks."""

    peers: Mapping[int, Peer]
    members: Mapping[str, Sequence[int]]
    default_group: str

    def sample(self, rank: int) -> Sample:
        """Return the sample of a rank that has published one."""
        sample = self.peers[rank].sample
        assert sample is not None, "a rank that waits has published a sample"
        return sample

    def counts(self, key: str) -> dict[int, int]:
        """Return how far each rank that has published a sample has come in a group."""
        return {
            rank: peer.sample.standings[key].count
            for rank, peer in self.peers.items()
            if peer.sample is not None and key in peer.sample.standings
        }

    def ranks_of(self, key: str) -> Sequence[int]:
        """Return the ranks of a group."""
        if group_of(key) == self.default_group:
            return list(self.peers)
        return self.members.get(group_of(key)) or list(self.counts(key))


class Standstill(NamedTuple):
    """A group in which the ranks ``waiting`` in its newest collective wait for those ``behind``."""

    key: str
    counts: Mapping[int, int]
    waiting: Sequence[int]
    behind: Sequence[int]


class Report(NamedTuple):
    """The sentence that matters most, and the whole text."""

    summary: str
    text: str


def write_report(survey: Survey, reporter: int, timing: Timing) -> Report | None:
    """Return the report of rank ``reporter``, or ``None`` if nothing stands still."""
    standstills = _find_standstills(survey, 2 * timing.interval_s)
    sample = survey.sample(reporter)
    is_due = any(
        age_s >= plan_timing(timeout_s, len(survey.peers)).min_age_s
        for each in standstills
        for age_s, timeout_s in _ages(survey, each)
    )
    is_silent = any(peer.sample is None and not peer.is_gone for peer in survey.peers.values())
    is_sure = sample.is_collective or (is_silent and bool(sample.operation))
    if standstills and is_due:
        body = list(_describe_standstills(survey, standstills))
    elif is_sure and sample.same_place_s >= timing.min_same_place_s:
        # Where all ranks are equal, they may all be computing: only a sure wait is reported, and
        # a rank that is not there to answer.
        body = list(_describe_gathering(survey, reporter))
    else:
        return None
    ages = [standing.age_s for standing in sample.standings.values()]
    since = f"no collective has begun for {min(ages):.1f} s" if ages else "nothing moves"
    headline = f"mm-dist hang report: {since} (one may take {timing.timeout_s:g} s)"
    return Report(body[0].strip(), "\n".join([headline, *body]))


def _find_standstills(survey: Survey, min_age_s: float) -> list[Standstill]:
    """Return the groups in which some ranks have begun a collective that others have not."""
    samples = [peer.sample for peer in survey.peers.values() if peer.sample is not None]
    keys = sorted({key for sample in samples for key in sample.standings})
    found = filter(None, (_compare(survey, key) for key in keys))
    return [each for each in found if any(age >= min_age_s for age, _ in _ages(survey, each))]


def _compare(survey: Survey, key: str) -> Standstill | None:
    counts = survey.counts(key)
    front = max(counts.values())
    there = {rank for rank, count in counts.items() if count == front}
    if len(there) == len(counts):
        return None
    if not all(survey.sample(rank).standings[key].is_exact for rank in counts):
        # torch may have counted sends: who is in the same call as those in front is there, too.
        calls = {_find_call(survey.peers[rank]) for rank in there} - {None}
        there |= {rank for rank in counts if _find_call(survey.peers[rank]) in calls}
    waiting = [rank for rank in counts if rank in there and survey.peers[rank].is_running]
    behind = [rank for rank in survey.ranks_of(key) if rank not in there]
    return Standstill(key, counts, waiting, behind) if waiting and behind else None


def _find_call(peer: Peer) -> tuple[str, str] | None:
    sample = peer.sample
    if not peer.is_running or sample is None or not sample.is_collective:
        return None
    return sample.operation, sample.place


def _ages(survey: Survey, standstill: Standstill) -> Iterator[tuple[float, float]]:
    """Yield for how long each rank has been waiting, and for how long it may."""
    for rank in standstill.waiting:
        sample = survey.sample(rank)
        standing = sample.standings[standstill.key]
        # An accelerator's host waits wherever it needs a result, or nowhere. There it is enough to
        # have come further than others.
        if sample.operation or standing.is_exact:
            yield standing.age_s, standing.timeout_s


def _describe_standstills(survey: Survey, standstills: Sequence[Standstill]) -> Iterator[str]:
    behind = {rank for standstill in standstills for rank in standstill.behind}
    waiting = {rank for standstill in standstills for rank in standstill.waiting}
    # First those that others wait for, and that do not wait themselves; in a circle, all.
    roots = behind - waiting or behind
    for is_root in (True, False):
        for standstill in standstills:
            ranks = [rank for rank in standstill.behind if (rank in roots) is is_root]
            yield from _describe_alike(survey, ranks, partial(_describe_late, survey, standstill))
    for key, counts, stuck, _ in standstills:
        yield from _describe_alike(
            survey,
            stuck,
            lambda rank, key=key, counts=counts: (  # type: ignore[misc]
                f"waiting in {_name_call(survey, rank, key, counts[rank])}"
            ),
        )


def _describe_late(survey: Survey, standstill: Standstill, rank: int) -> str:
    key, counts, waiting, _ = standstill
    peer, front = survey.peers[rank], max(counts.values())
    missing = min(counts.get(rank, front - 1) + 1, front)
    call = _name_call(survey, waiting[0], key, missing)
    is_known = rank in counts or peer.is_gone
    entered = "never entered" if is_known else "may not have entered"
    return f"{entered} {call}, {_describe_place(peer)}"


def _describe_gathering(survey: Survey, reporter: int) -> Iterator[str]:
    """Describe ranks of which none is behind by its count."""
    key = _newest_group(survey.sample(reporter))
    everyone = survey.ranks_of(key) if key is not None else list(survey.peers)
    inside = [
        rank for rank in everyone if survey.peers[rank].is_running and survey.sample(rank).operation
    ]
    absent = [rank for rank in everyone if rank not in inside]
    expected = _name_newest(survey, reporter)

    def describe_absent(rank: int) -> str:
        peer = survey.peers[rank]
        # Nothing is known about one that is silent, except that the others wait.
        surely = "not" if peer.is_answer or peer.is_gone else "perhaps not"
        return f"{_describe_place(peer)}; {surely} in {expected}"

    yield from _describe_alike(survey, absent, describe_absent)
    calls: dict[str, list[int]] = {}
    for rank in inside:
        calls.setdefault(_name_newest(survey, rank), []).append(rank)
    if not absent and len({call.partition(" (")[0] for call in calls}) > 1:
        listed = [f"{_name_ranks(same)} in {call}" for call, same in calls.items()]
        shown = "; ".join(listed[:_NUM_SHOWN])
        yield f"  the ranks are in different collectives, which never meet: {shown}"
    elif not absent:
        yield (
            f"  every rank has entered {expected}, and it does not end: look at the network "
            "between them, and at the sizes of their tensors, which MM_DIST_DEBUG=1 compares"
        )
    yield from _describe_alike(
        survey, inside, lambda rank: f"waiting in {_name_newest(survey, rank)}"
    )


def _newest_group(sample: Sample) -> str | None:
    standings = sample.standings
    return min(standings, key=lambda key: standings[key].age_s, default=None)


def _name_newest(survey: Survey, rank: int) -> str:
    sample = survey.sample(rank)
    key = _newest_group(sample)
    if key is None:
        return f"{sample.operation or 'a collective'} ({sample.place})"
    return _name_call(survey, rank, key, sample.standings[key].count)


def _name_call(survey: Survey, rank: int, key: str, number: int) -> str:
    """Name a group's collective that ``rank`` has begun, as ``all_reduce #8 (train.py:7)``."""
    sample, group = survey.sample(rank), ""
    if group_of(key) != survey.default_group:
        group = f" among {_name_ranks(survey.ranks_of(key))}"
    # Older torch begins to count anywhere: only counts from the group's start are shown.
    tag = f" #{number}" if number < RANDOM_START else ""
    if sample.is_collective and number == sample.standings[key].count:
        return f"{sample.operation}{tag} ({sample.place}){group}"
    of = f" of {sample.operation}" if sample.operation else ""
    return f"collective{tag}{of} ({sample.place}){group}"


def _describe_place(peer: Peer) -> str:
    sample = peer.sample
    if peer.has_left:
        return "left: ended the process group"
    if sample is None:
        return (
            "gave no answer: may have died, be stuck outside Python, be cut off, or be busy in "
            "other groups"
        )
    if sample.error:
        return f"failed in {sample.place}: {sample.error}"
    if not peer.is_answer:
        age_s = max(0.0, time.time() - sample.wall_time)
        return f"gave no answer, was in {sample.place} {age_s:.0f} s ago"
    if sample.operation:
        verb = "waiting in" if sample.is_collective else "now in"
        return f"{verb} {sample.operation} ({sample.place})"
    return f"now in {sample.place}"


def _describe_alike(
    survey: Survey, ranks: Iterable[int], describe: Callable[[int], str]
) -> Iterator[str]:
    """Yield the lines about some ranks: one sentence for all that it is true of."""
    sentences: dict[str, list[int]] = {}
    for rank in ranks:
        sentences.setdefault(describe(rank), []).append(rank)
    shown = list(sentences.items())
    for sentence, alike in shown[:_NUM_SHOWN]:
        yield f"  {_name_ranks(alike)} {sentence}"
        samples = [survey.peers[rank].sample for rank in alike]
        iterations = sorted({s.iteration for s in samples if s and s.iteration is not None})
        if iterations:
            first, last = iterations[0], iterations[-1]
            span = f"iteration {first}" if first == last else f"iterations {first}-{last}"
            yield f"    {span}"
        yield from (f"    {line}" for line in (samples[0].stack if samples[0] else ()))
    rest = [rank for _, alike in shown[_NUM_SHOWN:] for rank in alike]
    if rest:
        yield f"  and the same of {_name_ranks(rest)}, each in a place of its own"


def _name_ranks(ranks: Iterable[int]) -> str:
    text = format_ranks(ranks)
    return f"rank {text}" if text.isdecimal() else f"ranks {text}"
