"""Arrange in which order the ranks of an exchange send."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from mm_dist._collectives import _stream


@dataclass
class Turn:
    """A time in which some ranks send.

    Attributes:
        sizes: By number of the rank, how many bytes come first.
        is_long: Whether more follows, chunk by chunk; then there is one rank only.
    """

    sizes: dict[int, int] = field(default_factory=dict)
    is_long: bool = False


def arrange_turns(sizes: Sequence[int], are_long: Sequence[int]) -> list[Turn]:
    """Put ranks in order into turns of at most a chunk; long ones have a turn of their own."""
    turns: list[Turn] = []
    room = 0
    for source, (size, is_long) in enumerate(zip(sizes, are_long, strict=True)):
        if size == 0:
            continue
        if is_long or size > room:
            turns.append(Turn(is_long=bool(is_long)))
            room = _stream.CHUNK_BYTES
        turns[-1].sizes[source] = size
        room = 0 if is_long else room - size
    return turns
