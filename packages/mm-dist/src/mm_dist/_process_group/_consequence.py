"""Tell an error that this rank made from one that only shows that another rank is gone."""

import re
from collections.abc import Iterator

# In the words of gloo, NCCL, HCCL and torch's store.
_LOST_PEER = re.compile(
    r"connection (was )?(closed|reset|refused) by (remote )?peer"
    r"|connection reset by peer"
    r"|broken pipe"
    r"|socket closed"
    r"|ncclRemoteError|remote process exited"
    r"|ncclCommAbort|communicator was aborted|aborted communicator"
    r"|failed to recv, got 0 bytes|recv, 0 bytes"
    r"|remote server shutdown or crash",
    re.IGNORECASE,
)
_TIMED_OUT = re.compile(
    r"timed out waiting \d+ ?ms"
    r"|wait timeout after \d+ ?ms"
    r"|watchdog caught collective operation timeout"
    r"|socket timeout"
    r"|failed to pass monitoredBarrier"
    r"|application timeout caused pair closure",
    re.IGNORECASE,
)


def is_lost_peer(error: BaseException) -> bool:
    """Return whether an error says that a connection to another rank broke.

    Example:
        >>> is_lost_peer(RuntimeError("[pair.cc:534] Connection closed by peer [10.0.0.2]:1"))
        True
    """
    return any(_LOST_PEER.search(str(each)) for each in _chain(error) if _is_of_torch(each))


def is_timeout(error: BaseException) -> bool:
    """Return whether an error says that other ranks did not come in time.

    Example:
        >>> is_timeout(RuntimeError("Timed out waiting 2000ms for recv operation to complete"))
        True
    """
    return any(_TIMED_OUT.search(str(each)) for each in _chain(error) if _is_of_torch(each))


def _is_of_torch(error: BaseException) -> bool:
    # Its network errors derive from RuntimeError; a user's own broken connections do not.
    return isinstance(error, RuntimeError)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__
