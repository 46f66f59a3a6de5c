"""One sentence for all ranks that it is true of, with the details below it."""

from collections.abc import Callable, Iterator, Sequence

from mm_dist._hang_report._survey import Survey
from mm_dist._hang_report._words import Verbs, name_ranks, tell_iteration, verbs_for

_NUM_SHOWN = 8


def tell_alike(
    survey: Survey, ranks: Sequence[int], tell: Callable[[int, Verbs], str]
) -> Iterator[str]:
    """Yield the lines about some ranks: never more than a screen, however many ranks there are.

    Args:
        survey: All ranks.
        ranks: Those to tell about.
        tell: Says the rest of the sentence about one rank. Ranks with the same rest share one.
    """
    one = verbs_for([0])
    groups: dict[str, list[int]] = {}
    for rank in ranks:
        groups.setdefault(tell(rank, one), []).append(rank)
    alike = list(groups.values())
    for group in alike[:_NUM_SHOWN]:
        yield f"  {name_ranks(group)} {tell(group[0], verbs_for(group))}"
        yield from _tell_details(survey, group)
    rest = [rank for group in alike[_NUM_SHOWN:] for rank in group]
    if rest:
        yield f"  and the same of {name_ranks(rest)}, each in a place of its own"


def _tell_details(survey: Survey, ranks: Sequence[int]) -> Iterator[str]:
    samples = {rank: survey.peers[rank].sample for rank in ranks}
    iteration = tell_iteration(samples, ranks)
    if iteration:
        yield f"    {iteration}"
    sample = samples[ranks[0]]
    for line in sample.stack if sample is not None else ():
        yield f"    {line}"
