"""Write down many ranks in few characters."""

from collections.abc import Iterable


def format_ranks(ranks: Iterable[int]) -> str:
    """Return ranks with neighbours joined.

    Example:
        >>> format_ranks([5, 0, 1, 2])
        '0-2, 5'
    """
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ", ".join(f"{first}-{last}" if last > first else f"{first}" for first, last in spans)
