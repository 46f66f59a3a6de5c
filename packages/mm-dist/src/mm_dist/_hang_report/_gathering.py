"""Tell about a standstill in which no rank is behind by its count.

The ranks are in different collectives of one number, or one went on without entering, or all are
in the same collective and the communication itself fails.
"""

import time
from collections.abc import Iterator, Sequence

from mm_dist._hang_report._analysis import is_surely_waiting, is_waiting
from mm_dist._hang_report._groups import group_of
from mm_dist._hang_report._sentences import tell_alike
from mm_dist._hang_report._survey import Peer, Survey
from mm_dist._hang_report._words import (
    Verbs,
    name_group,
    name_operation,
    name_ranks,
    tell_whereabouts,
)


def is_gathered(survey: Survey, reporter: int, min_same_place_s: float) -> bool:
    """Return whether the reporter itself is certainly waiting for others, and has been for long.

    Where all ranks are equal, that is the only sign: they may all be computing for a long time.
    """
    peer = survey.peers[reporter]
    if peer.sample is None or peer.sample.same_place_s < min_same_place_s:
        return False
    return is_surely_waiting(peer.sample)


def tell_gathering(survey: Survey, reporter: int) -> Iterator[str]:
    """Yield the lines that say where every rank is."""
    newest = survey.find_newest(reporter)
    everyone = survey.ranks_of(newest[0]) if newest else list(survey.peers)
    inside = {rank for rank in everyone if _is_inside(survey.peers[rank])}
    absent = [rank for rank in everyone if rank not in inside]
    expected = _name_newest(survey, reporter)
    now = time.time()

    def tell_absent(rank: int, verbs: Verbs) -> str:
        peer = survey.peers[rank]
        # Nothing is known about one that is silent, except that the others wait.
        surely = "not" if peer.is_answer or peer.is_gone else "perhaps not"
        return f"{tell_whereabouts(peer, verbs, now)}; {surely} in {expected}"

    def tell_inside(rank: int, verbs: Verbs) -> str:
        return f"{verbs.wait} in {_name_newest(survey, rank)}"

    yield from tell_alike(survey, absent, tell_absent)
    if not absent:
        yield f"  {_explain(survey, sorted(inside), expected)}"
    yield from tell_alike(survey, sorted(inside), tell_inside)


def _is_inside(peer: Peer) -> bool:
    return peer.is_running and is_waiting(peer)


def _name_newest(survey: Survey, rank: int) -> str:
    sample = survey.peers[rank].sample
    assert sample is not None, "a rank that waits has said so"
    newest = survey.find_newest(rank)
    if newest is None or sample.activity.is_point_to_point:
        return f"{sample.activity.operation or 'a collective'} ({sample.place})"
    key, number = newest
    return name_operation(sample, group_of(key), number, number) + name_group(survey, key)


def _explain(survey: Survey, ranks: Sequence[int], expected: str) -> str:
    kinds = {_name_newest(survey, rank).partition(" (")[0] for rank in ranks}
    if len(kinds) > 1:
        return f"the ranks are in different collectives, which never meet: {_list(survey, ranks)}"
    sizes = {size for rank in ranks if (size := _find_sizes(survey.peers[rank], expected))}
    if len(sizes) > 1:
        return f"the ranks gave tensors that differ: {'; '.join(sorted(sizes)[:4])}"
    return (
        f"every rank has entered {expected}, and it does not end: look at the network between "
        "them, and at the sizes of their tensors"
    )


def _list(survey: Survey, ranks: Sequence[int]) -> str:
    inside: dict[str, list[int]] = {}
    for rank in ranks:
        inside.setdefault(_name_newest(survey, rank), []).append(rank)
    return "; ".join(f"{name_ranks(same)} in {name}" for name, same in list(inside.items())[:4])


def _find_sizes(peer: Peer, expected: str) -> str:
    for operation in reversed(peer.sample.operations if peer.sample else ()):
        if expected.startswith(f"{operation.operation} #{operation.number} "):
            return operation.sizes
    return ""
