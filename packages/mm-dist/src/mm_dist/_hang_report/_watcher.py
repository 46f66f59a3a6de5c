"""The thread that notices when this rank stands still."""

import logging
import math
import sys
import threading
import time
from datetime import timedelta

from mm_dist._errors import LaunchError
from mm_dist._hang_report._analysis import is_waiting
from mm_dist._hang_report._correspondent import Correspondent
from mm_dist._hang_report._failure import Failure
from mm_dist._hang_report._observer import Observer
from mm_dist._hang_report._report import Report
from mm_dist._hang_report._survey import Peer
from mm_dist._hang_report._timing import Timing, plan_timing
from mm_dist._process_group._store import StoreAddress

_logger = logging.getLogger(__name__)
# Longest time that the end of a process may be held up by its thread.
_JOIN_S = 1.0
_FAILURE_S = 3.0
# In which a store answers that answers at all: a rank that has failed must not hang for long.
_ANSWER_S = 1.5


class Watcher:
    """Looks at this rank now and then, until it is stopped.

    As long as collectives begin, it reads a few counters and does nothing else. When none has
    begun for a quarter of the timeout it connects to the store, and listens there for requests.
    Shortly before the timeout, one of the waiting ranks asks all others and prints the report.

    Args:
        rank: This rank.
        world_size: How many there are.
        address: Where the ranks' store is.
        prefix: What the keys of this group begin with.
        timeout: How long a collective may take.
    """

    def __init__(
        self, rank: int, world_size: int, address: StoreAddress, prefix: str, timeout: timedelta
    ) -> None:
        self._rank = rank
        self._world_size = world_size
        self._observer = Observer(threading.get_ident(), timeout.total_seconds())
        self._correspondent = Correspondent(rank, world_size, address, prefix, self._observer)
        self._tried_at = -math.inf
        self._unreachable_until = -math.inf
        self._is_pending: bool | None = None
        self._failure: Failure | None = None
        self._is_explained = threading.Event()
        # The store has, since this rank failed; or nobody will ask it any more.
        self._is_answered = threading.Event()
        self._is_out_of_reach = False
        self._wake_up = threading.Event()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="mm_dist-hang-report", daemon=True)
        self._thread.start()

    @property
    def report(self) -> Report | None:
        """The report of the present standstill."""
        return self._correspondent.report

    @property
    def is_store_silent(self) -> bool:
        """Whether the store has not answered since this rank failed."""
        is_answered = self._is_answered.is_set() and not self._is_out_of_reach
        return self._failure is not None and not is_answered

    def stop(self) -> None:
        """End the thread; wait for it for a second at most."""
        self._is_stopping = True
        self._wake_up.set()
        # One that waits for a store which does not answer would go on waiting.
        is_stuck = self._failure is not None and not self._is_answered.is_set()
        self._thread.join(0.0 if is_stuck else _JOIN_S)

    def set_timeout(self, timeout: timedelta) -> None:
        """Expect another timeout in the group of all ranks, and read those of the others again."""
        self._observer.set_timeout(timeout.total_seconds())

    def explain(self, failure: Failure) -> Report | None:
        """Let the thread deal with the error that ends this rank, and return what it finds."""
        if self.report is None or not failure.is_timeout:
            self._failure = failure
            self._wake_up.set()
            if self._is_answered.wait(_ANSWER_S):
                self._is_explained.wait(2 * self._wait_timing.collect_s + _FAILURE_S)
        return self.report if failure.is_timeout else None

    def _run(self) -> None:
        try:
            while not self._is_stopping:
                self._wake_up.wait(self._look_timing.interval_s)
                self._wake_up.clear()
                self._act_in_reach()
        except Exception:
            # Training goes on whatever happens here.
            _logger.debug("no hang report from now on", exc_info=True)
        finally:
            self._is_answered.set()
            self._is_explained.set()
            self._correspondent.disconnect()

    def _act_in_reach(self) -> None:
        """Act, unless the store cannot be reached now; without it there is no report."""
        if time.monotonic() < self._unreachable_until and self._failure is None:
            self._observer.look()
            return
        try:
            self._act()
        except (RuntimeError, OSError, LaunchError):
            # It may be busy, or its name unknown for a moment; or it has ended with rank 0.
            _logger.debug("the store cannot be reached", exc_info=True)
            self._correspondent.disconnect()
            self._unreachable_until = time.monotonic() + self._look_timing.quiet_s
            if self._failure is not None:
                self._is_out_of_reach = True
                self._is_answered.set()
                self._is_explained.set()

    def _act(self) -> None:
        if self._is_stopping:
            return
        if self._failure is not None:
            self._act_on(self._failure)
            return
        self._observer.look()
        if self._observer.quiet_s < self._look_timing.quiet_s:
            self._correspondent.leave()
            self._is_pending = None
            return
        self._observer.look_at_stack()
        self._correspondent.join()
        if self._correspondent.correspond():
            self._tried_at = time.monotonic()
        if self._is_due():
            self._tried_at = time.monotonic()
            if self._correspondent.make_report(self._wait_timing):
                self._print_report()

    @property
    def _look_timing(self) -> Timing:
        """How often to look, and from when on to listen: for the shortest timeout of any group."""
        return plan_timing(self._observer.shortest_timeout_s, self._world_size)

    @property
    def _wait_timing(self) -> Timing:
        """How long the wait that this rank may be in is allowed to take."""
        return plan_timing(self._observer.newest_timeout_s, self._world_size)

    def _is_due(self) -> bool:
        timing = self._wait_timing
        if self.report is not None or self._observer.quiet_s < timing.due_s:
            return False
        is_inside = self._observer.is_in_collective(timing.min_same_place_s)
        pause_s = 2 * timing.interval_s if is_inside else timing.quiet_s
        if time.monotonic() < self._tried_at + pause_s:
            return False
        return is_inside or self._is_waiting_otherwise()

    def _is_waiting_otherwise(self) -> bool:
        # Once is enough: it cannot change as long as no collective begins, and the flight recorder
        # takes its time.
        if self._is_pending is None:
            sample = self._observer.take_sample()
            newest = min(sample.standings.values(), key=lambda s: s.age_s, default=None)
            self._is_pending = is_waiting(Peer(self._rank, sample), newest)
        return self._is_pending

    def _print_report(self) -> None:
        if sys.stderr is not None and self.report is not None:
            # In one piece: the ranks share the launcher's console.
            sys.stderr.write(f"{self.report.text}\n")
            sys.stderr.flush()

    def _act_on(self, failure: Failure) -> None:
        """Tell the others about the error, or find out what they have to do with it."""
        correspondent = self._correspondent
        if self._is_explained.is_set():
            correspondent.correspond()
            return
        self._observer.freeze(failure.stack)
        correspondent.join()
        if not failure.is_timeout:
            correspondent.publish_error(failure.text)
            self._is_answered.set()
            self._is_explained.set()
            return
        correspondent.correspond()
        self._is_answered.set()
        if self.report is None and correspondent.make_report(self._wait_timing, is_certain=True):
            self._print_report()
        if self.report is not None:
            self._is_explained.set()
