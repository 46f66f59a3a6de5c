"""The error that ends this rank, as the other ranks need to know it."""

from collections.abc import Sequence
from typing import NamedTuple

from mm_dist._hang_report._stack import Frame, read_traceback
from mm_dist._process_group._consequence import is_lost_peer, is_timeout
from mm_dist._process_group._failure_record import describe_error


class Failure(NamedTuple):
    """An error that ends this rank.

    Attributes:
        stack: Where it was raised, innermost frame first.
        text: Its type and message, in one line.
        is_timeout: Whether other ranks did not come in time.
    """

    stack: Sequence[Frame]
    text: str
    is_timeout: bool


def read_failure(error: BaseException) -> Failure | None:
    """Return what there is to tell about an error; ``None`` if it only follows from another's."""
    if is_lost_peer(error):
        return None
    return Failure(read_traceback(error.__traceback__), describe_error(error), is_timeout(error))
