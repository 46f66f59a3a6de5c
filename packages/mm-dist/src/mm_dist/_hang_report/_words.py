"""Put what is known about ranks into words."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from mm_dist._hang_report._groups import find_start
from mm_dist._hang_report._sample import Sample
from mm_dist._hang_report._survey import Peer, Survey
from mm_dist._rank_spans import format_ranks


def name_ranks(ranks: Iterable[int]) -> str:
    """Return ranks in few words: ``rank 1``, ``ranks 0-2, 5``.

    Example:
        >>> name_ranks([5, 0, 1, 2])
        'ranks 0-2, 5'
    """
    text = format_ranks(ranks)
    return f"rank {text}" if text.isdecimal() else f"ranks {text}"


class Verbs(NamedTuple):
    """Verbs in the number of their subject."""

    are: str
    wait: str
    have: str
    do: str
    they: str


_ONE = Verbs("is", "waits", "has", "does", "it")
_MANY = Verbs("are", "wait", "have", "do", "they")


def verbs_for(ranks: Iterable[int]) -> Verbs:
    """Return the verbs that fit ``name_ranks`` of the same ranks."""
    return _ONE if len(list(ranks)) == 1 else _MANY


def tell_whereabouts(peer: Peer, verbs: Verbs, now: float) -> str:
    """Say where a rank is, as the rest of a sentence about it and those like it.

    Args:
        peer: The rank.
        verbs: In the number of the sentence's subject.
        now: Seconds of the wall clock.
    """
    sample = peer.sample
    if peer.has_left:
        when = "" if peer.last_iteration is None else f" in iteration {peer.last_iteration}"
        return f"{verbs.have} left: {verbs.they} ended the process group{when}"
    if sample is None:
        return (
            f"{verbs.do} not answer: {verbs.they} may have died, be stuck outside Python, be cut "
            "off, or go on in other groups"
        )
    if sample.error:
        return f"{verbs.have} failed in {sample.place}: {sample.error}"
    if not peer.is_answer:
        age_s = max(0.0, now - sample.wall_time)
        return f"{verbs.do} not answer, and was in {sample.place} {age_s:.0f} s ago"
    return _tell_activity(sample, verbs)


def _tell_activity(sample: Sample, verbs: Verbs) -> str:
    activity = sample.activity
    if activity.is_collective or activity.is_point_to_point:
        return f"{verbs.wait} in {activity.operation} ({sample.place})"
    if activity.operation:
        return f"{verbs.are} in {activity.operation} ({sample.place})"
    return f"{verbs.are} in {sample.place}"


def name_operation(sample: Sample, group: str, number: int, front: int) -> str:
    """Return the name and place of a collective, as a rank that has begun it knows them.

    Args:
        sample: What that rank says.
        group: The collective's process group.
        number: Its number there.
        front: The number of the newest collective of that rank there.
    """
    activity = sample.activity
    tag = _tell_number(number)
    if activity.is_collective and not activity.is_counted and number == front:
        return f"{activity.operation} ({sample.place})"
    if activity.is_collective and number == front:
        return f"{activity.operation}{tag} ({sample.place})"
    for operation in sample.operations:
        if operation.group == group and operation.number == number:
            place = operation.place or sample.place
            return f"{operation.operation}{tag} ({place})"
    if activity.operation:
        return f"collective{tag} of {activity.operation} ({sample.place})"
    return f"collective{tag}"


def _tell_number(number: int) -> str:
    # Of a group whose beginning nobody has seen, older torch does not tell how far it has come.
    return "" if find_start(number) else f" #{number}"


def tell_wait(sample: Sample, name: str, verbs: Verbs) -> str:
    """Say how a rank waits for the collective called ``name``, as the rest of a sentence."""
    if sample.place and f"({sample.place})" in name:
        return f"{verbs.wait} in {name}"
    return f"{verbs.wait} in {sample.place} for {name}"


def tell_iteration(samples: Mapping[int, Sample | None], ranks: Iterable[int]) -> str:
    """Return ``iteration 7``, ``iterations 6-7``, or nothing where nobody counts."""
    found = {sample.iteration for rank in ranks if (sample := samples.get(rank)) is not None}
    numbers = sorted(number for number in found if number is not None)
    if not numbers:
        return ""
    if len(numbers) == 1:
        return f"iteration {numbers[0]}"
    return f"iterations {numbers[0]}-{numbers[-1]}"


def name_group(survey: Survey, key: str) -> str:
    """Return `` among ranks 0, 2``, or nothing for the group of all ranks."""
    return "" if survey.is_default(key) else f" among {name_ranks(survey.ranks_of(key))}"
