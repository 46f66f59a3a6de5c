"""This rank's dealings with the others: answers, requests, and the report of one for all."""

import json

from mm_dist._hang_report._analysis import find_standstills
from mm_dist._hang_report._board import REPORTS, REQUESTS, Board
from mm_dist._hang_report._inquiry import ask_ranks
from mm_dist._hang_report._observer import Observer
from mm_dist._hang_report._report import Question, Report, write_report
from mm_dist._hang_report._sample import encode_sample
from mm_dist._hang_report._timing import Timing
from mm_dist._process_group._store import StoreAddress

# In place of a report: no rank is behind another, so that nobody needs to ask again soon.
_CALM = "calm"
# Answers every request that will ever be made.
_FINAL = 2**31


class Correspondent:
    """Talks with the other ranks through the store, while it is connected.

    Args:
        rank: This rank.
        world_size: How many there are.
        address: Where the ranks' store is.
        prefix: What the keys of this group begin with.
        observer: Knows this rank.
    """

    def __init__(
        self, rank: int, world_size: int, address: StoreAddress, prefix: str, observer: Observer
    ) -> None:
        self._rank = rank
        self._world_size = world_size
        self._address = address
        self._prefix = prefix
        self._observer = observer
        self._board: Board | None = None
        self._num_answers = 0
        self._num_reports = 0
        self.report: Report | None = None

    def join(self) -> None:
        """Connect, and show where this rank is, in case that it dies in silence.

        Raises:
            ConnectionError: If the store is not there, or not any more.
            LaunchError: If its name is not known any more.
        """
        if self._board is not None:
            return
        self._board = Board(self._address, self._prefix)
        self._num_reports = self._board.count(REPORTS)
        self._num_answers = self._board.count(REQUESTS)
        self._publish(self._num_answers)

    def leave(self) -> None:
        """Disconnect; nothing of this rank stays in the store.

        Raises:
            ConnectionError: If the store is not there any more.
        """
        if self._board is not None:
            self._board.check_store()
            self._board.withdraw(self._rank)
            self.report = None
            self.disconnect()

    def disconnect(self) -> None:
        """Disconnect without a word."""
        if self._board is not None:
            self._board.close()
            self._board = None

    def correspond(self) -> bool:
        """Answer a request and fetch a report, if there is one.

        Returns:
            Whether another rank has found out just now that nothing stands still.

        Raises:
            ConnectionError: If the store is not there any more.
        """
        self._connected.check_store()
        num_requests = self._connected.count(REQUESTS)
        if num_requests > self._num_answers:
            self._publish(num_requests)
            self._num_answers = num_requests
        num_reports = self._connected.count(REPORTS)
        if num_reports == self._num_reports:
            return False
        self._num_reports = num_reports
        text = self._connected.read_report(num_reports - 1)
        if text not in ("", _CALM):
            self.report = Report(*json.loads(text))
        return text == _CALM

    def publish_error(self, error: str) -> None:
        """Show that this rank ends, for good."""
        sample = self._observer.take_sample(error=error)
        self._connected.publish(self._rank, _FINAL, encode_sample(sample))

    def make_report(self, timing: Timing, *, is_certain: bool = False) -> bool:
        """Ask all ranks and write the report, unless another rank is at it.

        Args:
            timing: How long a wait must be, and how long to wait for answers.
            is_certain: Whether torch has given up already.

        Returns:
            Whether this rank wrote one.
        """
        if not self._connected.claim(f"{self._num_reports}"):
            return False
        take_own = self._observer.take_sample
        survey = ask_ranks(
            self._connected, self._rank, self._world_size, take_own, timing.collect_s
        )
        self.report = write_report(survey, Question(self._rank, timing, is_certain))
        if self.report is not None:
            text = json.dumps(self.report)
        else:
            text = "" if find_standstills(survey, 0.0) else _CALM
        self._connected.write_report(self._num_reports, text)
        self._num_reports += 1
        return self.report is not None

    def _publish(self, request: int) -> None:
        sample = self._observer.take_sample(request)
        self._connected.publish(self._rank, request, encode_sample(sample))

    @property
    def _connected(self) -> Board:
        assert self._board is not None, "join() comes first"
        return self._board
