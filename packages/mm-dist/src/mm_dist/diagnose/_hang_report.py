"""The thread that notices when this rank stands still, and reports which rank it waits for."""

import logging
import math
import sys
import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from mm_dist._errors import LaunchError
from mm_dist._rendezvous._store import StoreAddress, is_kept_by_launcher, store_prefix
from mm_dist._state import DistInfo, state
from mm_dist._torch_private import default_store
from mm_dist.diagnose._board import LEFT, Board
from mm_dist.diagnose._error import describe_error, is_lost_peer, is_timeout
from mm_dist.diagnose._report import Report, Timing, plan_timing, write_report
from mm_dist.diagnose._sample import Observer
from mm_dist.diagnose._stack import read_traceback

_logger = logging.getLogger(__name__)
# torch's type information does not list it.
_TCP_STORE: Any = dist.TCPStore  # type: ignore[attr-defined]
# Longest time that the thread may delay the end of the process.
_JOIN_S = 1.0
# In which a store answers that answers at all: a rank that has failed must not hang for long.
_ANSWER_S = 1.5
_SILENT_RANK_0 = (
    "rank 0 does not answer: it is frozen, or has ended, or the link to its machine is cut"
)


class HangReport:
    """Looks at this rank now and then, until it is stopped.

    As long as collectives begin, it reads a few counters and does nothing else. When none has
    begun for a quarter of the timeout it connects to the store, and publishes at every look where
    this rank is. Shortly before the timeout, a waiting rank reads all and prints the report.
    ``store`` is torch's own connection, by which this rank notes its departure.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        address: StoreAddress,
        prefix: str,
        timeout: timedelta,
        store: Any,
    ) -> None:
        self._rank, self._world_size = rank, world_size
        self._store = store
        self._address, self._prefix = address, prefix
        self._observer = Observer(threading.get_ident(), timeout.total_seconds())
        self._board: Board | None = None
        self._num_reports = 0
        self._report: Report | None = None
        self._tried_at = self._unreachable_until = -math.inf
        self._failure: BaseException | None = None
        # Since this rank failed: whether the store has answered, or cannot be reached.
        self._is_answered = threading.Event()
        self._is_out_of_reach = False
        self._wake_up = threading.Event()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="mm_dist-hang-report", daemon=True)
        self._thread.start()

    @property
    def is_store_silent(self) -> bool:
        """Whether the store has not answered since this rank failed."""
        is_answered = self._is_answered.is_set() and not self._is_out_of_reach
        return self._failure is not None and not is_answered

    def set_timeout(self, timeout: timedelta) -> None:
        """Expect another timeout in the group of all ranks, and read those of the others again."""
        self._observer.set_timeout(timeout.total_seconds())

    def explain(self, error: BaseException) -> str:
        """Return which rank was waited for, in one sentence, if that ends this rank; else nothing.

        Call it on the way out, before the group is destroyed. An error that is no timeout is
        published for the others' reports.
        """
        if is_lost_peer(error):
            return ""
        if self._report is None or not is_timeout(error):
            self._failure = error
            self._wake_up.set()
            self._is_answered.wait(_ANSWER_S)
        if not is_timeout(error):
            return ""
        if self._report is not None:
            return self._report.summary
        is_asked = self._rank != 0 and not is_kept_by_launcher()
        return _SILENT_RANK_0 if is_asked and self.is_store_silent else ""

    def stop(self) -> None:
        """End the thread, and note that this rank leaves."""
        self.end_thread()
        # By torch's own connection, without an answer: the store may be gone already.
        with suppress(RuntimeError):
            self._store.set(f"{self._prefix}/{self._rank}/times", str(LEFT))

    def end_thread(self) -> None:
        """End the thread, which must not outlive the interpreter."""
        self._is_stopping = True
        self._wake_up.set()
        # A thread blocked on an unresponsive store would never return.
        is_stuck = self._failure is not None and not self._is_answered.is_set()
        self._thread.join(0.0 if is_stuck else _JOIN_S)

    def _run(self) -> None:
        try:
            while not self._is_stopping:
                self._wake_up.wait(self._look_timing.interval_s)
                self._wake_up.clear()
                if not self._is_stopping:
                    self._look()
        except Exception:
            # A failure here must not stop training.
            _logger.debug("no hang report from now on", exc_info=True)
        finally:
            self._is_answered.set()
            self._disconnect()

    def _look(self) -> None:
        """Look at this rank, and act unless the store cannot be reached now."""
        if self._failure is None:
            self._observer.look()
            if time.monotonic() < self._unreachable_until:
                return
        try:
            if self._failure is None:
                self._act()
            elif not self._is_answered.is_set():
                # For the reports of others; after a timeout, to fetch theirs.
                error = self._failure
                self._observer.freeze(read_traceback(error.__traceback__))
                self._publish("" if is_timeout(error) else describe_error(error))
                self._is_answered.set()
        except (RuntimeError, OSError, LaunchError):
            # It may be busy, or its name unknown for a moment; or it has ended with rank 0.
            _logger.debug("the store cannot be reached", exc_info=True)
            self._disconnect()
            self._unreachable_until = time.monotonic() + self._look_timing.quiet_s
            if self._failure is not None:
                self._is_out_of_reach = True
                self._is_answered.set()

    def _act(self) -> None:
        if self._observer.quiet_s < self._look_timing.quiet_s:
            if self._board is not None:
                self._board.check_store()
                self._board.withdraw(self._rank)
                self._report = None
                self._disconnect()
            return
        board = self._publish()
        timing = self._wait_timing
        is_due = self._observer.quiet_s >= timing.due_s and self._observer.may_wait
        is_inside = self._observer.is_in_collective(timing.min_same_place_s)
        pause_s = 2 * timing.interval_s if is_inside else timing.quiet_s
        if self._report is None and is_due and time.monotonic() >= self._tried_at + pause_s:
            self._make_report(board)

    @property
    def _look_timing(self) -> Timing:
        """How often to look, and when to publish: for the shortest timeout of any group."""
        return plan_timing(self._observer.shortest_timeout_s, self._world_size)

    @property
    def _wait_timing(self) -> Timing:
        """How long the wait that this rank may be in is allowed to take."""
        return plan_timing(self._observer.newest_timeout_s, self._world_size)

    def _publish(self, error: str = "") -> Board:
        """Publish where this rank is, and fetch a report that another rank has made."""
        board = self._board
        if board is None:
            board = self._board = Board(self._address, self._prefix)
            self._num_reports = board.count("reports")
        board.check_store()
        board.publish(self._rank, self._observer.take_sample(error=error))
        num_reports = board.count("reports")
        if num_reports > self._num_reports:
            self._num_reports = num_reports
            self._tried_at = time.monotonic()
            self._report = board.read_report(num_reports - 1) or self._report
        return board

    def _disconnect(self) -> None:
        if self._board is not None:
            self._board.close()
            self._board = None

    def _make_report(self, board: Board) -> None:
        """Read all ranks and print the report, unless another rank is doing so."""
        self._tried_at = time.monotonic()
        if board.count(f"claim/{self._num_reports}", 1) > 1:
            return
        timing, own = self._wait_timing, self._observer.take_sample()
        survey = board.survey(self._rank, own, self._world_size, timing.collect_s)
        self._report = write_report(survey, self._rank, timing)
        board.write_report(self._num_reports, self._report)
        self._num_reports += 1
        if self._report is not None and sys.stderr is not None:
            # In one piece: the ranks share the launcher's console.
            sys.stderr.write(f"{self._report.text}\n")
            sys.stderr.flush()


def start_hang_report(info: DistInfo, timeout: timedelta) -> HangReport | None:
    """Begin to watch this rank; every rank calls it in the training thread."""
    store: Any = default_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    if info.world_size == 1 or not isinstance(store, _TCP_STORE):
        return None
    address = StoreAddress(store.host, store.port)
    prefix = f"{store_prefix(state.num_joined)}/hang_report"
    return HangReport(info.rank, info.world_size, address, prefix, timeout, store)
