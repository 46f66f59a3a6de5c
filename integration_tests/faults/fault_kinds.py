"""What befalls a run over two hosts, and what is promised to happen then."""

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass

from job import START_S
from long_run import TIMEOUT_S

# Shorter than a launcher's keep-alive time, and longer than a collective's timeout.
_SHORT_CUT_S = 1.0
# What a slow rank gets of the time.
_RUNS_S, _STANDS_S = 0.01, 0.09


def _do_nothing(job, index):
    pass


@dataclass(frozen=True)
class Fault:
    """One kind.

    Attributes:
        name: In the table.
        how: It is brought about.
        policy: What is promised.
        strike: Called with the job and the number of a host.
        mend: Called likewise, once the ranks have ended; nothing by default.
        ends_ranks: Whether the ranks end, and others take their place.
        loses_steps: Whether what was done since the last checkpoint may be lost.
        words: What the launchers and ranks say of it; ``{rank}`` is the number of the rank, ``|``
            stands between alternatives.
        during: A context in which the fault lasts; for those that end no rank.
    """

    name: str
    how: str
    policy: str
    strike: Callable = _do_nothing
    mend: Callable = _do_nothing
    ends_ranks: bool = True
    loses_steps: bool = True
    words: tuple = ()
    during: Callable | None = None


def _signal_to(place, number):
    return lambda job, index: os.kill(getattr(job, place)(index), number)


def _start_again(job, index):
    time.sleep(1)  # as long as a scheduler takes, at least
    if index == 0:
        # The rendezvous was on the first host: the launcher of the other one ends, too.
        job.launchers[1].wait(START_S)
        job.start(1)
    job.start(index)


def _tell_both(job, _):
    for launcher in job.launchers:
        launcher.send_signal(signal.SIGTERM)


def _start_both(job, _):
    for index, launcher in enumerate(job.launchers):
        assert launcher.wait(30) == 75, job.last_words()
        job.start(index)


@contextmanager
def _slow(job, index):
    """Let a rank run a tenth of the time only."""
    rank, is_over = job.rank(index), threading.Event()

    def hold_back():
        while not is_over.is_set():
            os.kill(rank, signal.SIGSTOP)
            is_over.wait(_STANDS_S)
            os.kill(rank, signal.SIGCONT)
            is_over.wait(_RUNS_S)

    thread = threading.Thread(target=hold_back)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@contextmanager
def _short_cut(job, index):
    job.hosts[index].switch_link("down")
    time.sleep(_SHORT_CUT_S)
    job.hosts[index].switch_link("up")
    yield


RESTARTED = "all ranks are started again, and go on from the newest checkpoint"
SAVED = "all ranks save, and are started again"
KINDS = [
    Fault(
        "rank killed",
        "SIGKILL",
        RESTARTED,
        _signal_to("rank", signal.SIGKILL),
        words=("(exitcode: -9)",),
    ),
    Fault(
        "rank frozen",
        "SIGSTOP",
        f"noticed when a collective takes {TIMEOUT_S} s; {RESTARTED}",
        _signal_to("rank", signal.SIGSTOP),
        words=("rank {rank} gave no answer|rank {rank} does not answer",),
    ),
    Fault(
        "rank told to end",
        "SIGTERM",
        SAVED,
        _signal_to("rank", signal.SIGTERM),
        loses_steps=False,
        words=("(exitcode: 75)",),
    ),
    Fault(
        "rank slow",
        "runs 10 ms of every 100 ms",
        "training goes on, and the log names the rank",
        ends_ranks=False,
        words=("slowest is rank {rank}",),
        during=_slow,
    ),
    Fault(
        "launcher killed",
        "SIGKILL, started again by its scheduler",
        f"its ranks end with it; {RESTARTED}",
        _signal_to("launcher", signal.SIGKILL),
        _start_again,
    ),
    Fault(
        "host lost",
        "SIGKILL to all of its processes, started again by its scheduler",
        RESTARTED,
        lambda job, index: job.hosts[index].kill_all(),
        _start_again,
    ),
    Fault(
        "link cut briefly",
        f"for {_SHORT_CUT_S:g} s",
        "training goes on",
        ends_ranks=False,
        during=_short_cut,
    ),
    Fault(
        "run preempted",
        "SIGTERM to both launchers, started again by their scheduler",
        "all ranks save, the launchers end with status 75; the next ones go on",
        _tell_both,
        _start_both,
        loses_steps=False,
        words=("the ranks ask to be started again",),
    ),
]
