"""Let all ranks fail where one does, so that none is left waiting."""

from typing import NoReturn

from mm_dist._collectives._object_wire import ObjectWire
from mm_dist._errors import CollectiveError


def raise_on_all(wire: ObjectWire, function: str, error: Exception | None) -> None:
    """Return if no rank has an error, else raise on all of them; all ranks must come here.

    Args:
        wire: The ranks.
        function: Name of the collective, for the message.
        error: What happened on this rank, if anything did.

    Raises:
        CollectiveError: If a rank gave an error; it names the first one of them.
    """
    # The first failing rank has the greatest code.
    code = 0 if error is None else len(wire.ranks) - wire.index
    (greatest,) = wire.gather_maxima([code])
    if greatest:
        raise_failure(wire, function, len(wire.ranks) - greatest, error)


def raise_failure(
    wire: ObjectWire, function: str, failed: int, error: Exception | None
) -> NoReturn:
    """Raise the error of one rank on all of them, which must come here together.

    Args:
        wire: The ranks.
        function: Name of the collective, for the message.
        failed: Number of the failing rank within ``wire``.
        error: What happened on this rank, if anything did.

    Raises:
        CollectiveError: Always.
    """
    own = "" if error is None else f"{type(error).__name__}: {error}"
    reason = wire.gather_texts(own)[failed]
    message = f"{function} failed on rank {wire.ranks[failed]}: {reason}"
    raise CollectiveError(message) from error
