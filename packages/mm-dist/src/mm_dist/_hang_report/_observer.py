"""Look at this process: how far its groups have come, and where its thread is."""

import time
from collections.abc import Mapping, Sequence

from mm_dist._hang_report._activity import find_activity
from mm_dist._hang_report._flight_recorder import Operation, read_operations
from mm_dist._hang_report._groups import (
    Count,
    default_group_name,
    find_start,
    group_of,
    read_counts,
    read_timeouts,
)
from mm_dist._hang_report._sample import Sample, Standing
from mm_dist._hang_report._stack import Frame, locate, read_stack, show_stack
from mm_dist._progress import current_iteration


class Observer:
    """Watches the groups of this process and one of its threads.

    Args:
        thread_id: The thread that trains, as ``threading.get_ident`` names it.
        timeout_s: How long a collective of the group of all ranks may take.
    """

    def __init__(self, thread_id: int, timeout_s: float) -> None:
        self._thread_id = thread_id
        self._default_timeout_s = timeout_s
        self._timeouts = read_timeouts()
        self._looked_at = time.monotonic()
        self._counts: Mapping[str, Count] = read_counts()
        self._moved_at = dict.fromkeys(self._counts, self._looked_at)
        self._starts = {key: find_start(count.value) for key, count in self._counts.items()}
        self._stack: Sequence[Frame] = ()
        self._same_since = self._looked_at
        self._final_stack: Sequence[Frame] | None = None

    def set_timeout(self, timeout_s: float) -> None:
        """Take this for the timeout of the group of all ranks, and read those of the others."""
        self._default_timeout_s = timeout_s
        self._timeouts = read_timeouts()

    @property
    def shortest_timeout_s(self) -> float:
        """The shortest timeout of any group of this process."""
        return min([self._default_timeout_s, *map(self._timeout_of, self._counts)])

    @property
    def newest_timeout_s(self) -> float:
        """The timeout of the group that moved last: that of the collective this rank is in."""
        newest = max(self._moved_at, key=lambda key: self._moved_at[key], default=None)
        return self._default_timeout_s if newest is None else self._timeout_of(newest)

    def _timeout_of(self, key: str) -> float:
        if group_of(key) == default_group_name():
            return self._default_timeout_s
        return self._timeouts.get(group_of(key), self._default_timeout_s)

    def freeze(self, stack: Sequence[Frame]) -> None:
        """Take this for the thread's stack from now on: where the error that ends it was raised."""
        self._final_stack = stack

    def look(self) -> None:
        """Notice which groups have moved since the last look; touches no stack."""
        now = time.monotonic()
        counts = read_counts()
        for key, count in counts.items():
            if self._counts.get(key) != count:
                # At some moment since the last look. The earlier one counts: a report that begins
                # too late never appears.
                self._moved_at[key] = self._looked_at
        if counts.keys() != self._counts.keys():
            self._moved_at = {key: self._moved_at[key] for key in counts}
            self._timeouts = read_timeouts()
        self._counts, self._looked_at = counts, now

    def look_at_stack(self) -> Sequence[Frame]:
        """Return the thread's stack, and notice whether it has changed."""
        stack = self._final_stack or read_stack(self._thread_id)
        if stack != self._stack:
            self._stack, self._same_since = stack, time.monotonic()
        return stack

    def is_in_collective(self, min_same_place_s: float) -> bool:
        """Return whether the stack has been a wait for other ranks, at one place, for so long."""
        is_still = self._looked_at - self._same_since >= min_same_place_s
        return is_still and find_activity(self._stack).is_collective

    @property
    def quiet_s(self) -> float:
        """For how many seconds no group has moved; where no backend counts, the thread."""
        if not self._moved_at:
            self.look_at_stack()
        return time.monotonic() - max(self._moved_at.values(), default=self._same_since)

    def take_sample(self, request: int = 0, *, error: str = "") -> Sample:
        """Return what there is to say now.

        Args:
            request: The number of the request that is answered.
            error: Type and message of the exception that ends this rank.
        """
        stack = self.look_at_stack()
        operations = read_operations()
        return Sample(
            request=request,
            iteration=current_iteration(),
            activity=find_activity(stack),
            place=locate(stack),
            stack=show_stack(stack),
            same_place_s=time.monotonic() - self._same_since,
            wall_time=time.time(),
            standings={key: self._stand(key, operations) for key in self._counts},
            operations=operations,
            error=error,
        )

    def _stand(self, key: str, operations: Sequence[Operation]) -> Standing:
        count = self._counts[key]
        numbers = [
            operation.number
            for operation in operations
            if operation.group == group_of(key) and operation.backend in (count.backend, "")
        ]
        return Standing(
            counted=count.value,
            start=self._starts.get(key, None if find_start(count.value) else 0),
            recorded=max(numbers, default=None),
            is_exact=count.backend != "gloo",
            age_s=time.monotonic() - self._moved_at[key],
            timeout_s=self._timeout_of(key),
        )
