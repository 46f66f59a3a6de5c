"""Say which rank failed each time that torch's launcher starts all of them again."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

Tell = Callable[[Mapping[int, Any], int, int], None]


@contextmanager
def telling_of_restarts(tell: Tell) -> Iterator[None]:
    """Call ``tell`` within the block whenever ranks of this machine failed and are started again.

    torch's own line about it names neither the rank nor the error.

    Args:
        tell: Called with torch's ``ProcessFailure`` of each failed rank, the number of this
            restart, and how many there may be.
    """
    from torch.distributed.launcher import api  # noqa: PLC0415 (slow)

    own: Any = api
    usual = own.LocalElasticAgent

    class _TellingAgent(usual):  # type: ignore[misc, valid-type]
        def _monitor_workers(self, worker_group: Any) -> Any:
            result = super()._monitor_workers(worker_group)
            left, most = self._remaining_restarts, worker_group.spec.max_restarts
            if result.is_failed() and result.failures and left > 0:
                tell(result.failures, most - left + 1, most)
            return result

    own.LocalElasticAgent = _TellingAgent
    try:
        yield
    finally:
        own.LocalElasticAgent = usual
