"""Watch a launcher from outside: it may be killed, hang, or lose the other machines.

torch's launcher asks the rendezvous several times a second, and waits for the answer without a
limit. After a cut link it waits until the system gives the connection up, a quarter of an hour by
default, and its ranks are not started again. Its guard is the process that it was forked from.
"""

import argparse
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn

from mm_dist._command._output import write_error
from mm_dist._command._run_contact import LOST, TALKED, Contact
from mm_dist._command._run_family import (
    adopt_orphans,
    children_of,
    descendants_of,
    end_with_parent,
    is_alive,
    send_signal,
    wake_if_told_to_end,
)
from mm_dist._errors import MMDistError

_SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1")
_LOOK_S, _PAUSE_S = 0.25, 1.0
_FIRST_SIGNAL_STATUS = 128
# torch's defaults, in seconds.
_KEEP_ALIVE_S, _KEEP_ALIVE_ATTEMPTS, _JOIN_S, _SHUTDOWN_S = 5, 3, 600, 30


@dataclass(frozen=True)
class GuardPlan:
    """When a launcher counts as lost, and what is done then; times in seconds.

    Attributes:
        where: Where the launchers meet.
        silence_s: Without an answer of the rendezvous for so long, it hangs: the others count it
            as gone after that time.
        rejoin_s: For how long other launchers, one after the other, try to meet the others again.
        shutdown_s: How long its ranks may take to end.
        num_again: How often another launcher may take its place.
    """

    where: str
    silence_s: float
    rejoin_s: float
    shutdown_s: float
    num_again: int

    @property
    def first_answer_s(self) -> float:
        """How long it may take until the rendezvous answers for the first time."""
        return max(self.rejoin_s, self.silence_s)


def plan_guard(options: argparse.Namespace) -> GuardPlan:
    """Return the times that the options of ``mm-dist run`` ask for.

    Example:
        >>> conf = "keep_alive_interval=2,join_timeout=40"
        >>> given = argparse.Namespace(rdzv_conf=conf, rdzv_endpoint="a:1", max_restarts=3)
        >>> plan_guard(given).silence_s
        6.0
    """
    conf = dict(part.partition("=")[::2] for part in options.rdzv_conf.split(",") if part)

    def read(name: str, default: float) -> float:
        return float(conf.get(name) or default)

    attempts = read("keep_alive_max_attempt", _KEEP_ALIVE_ATTEMPTS)
    shutdown_s = getattr(options, "shutdown_timeout", None)
    return GuardPlan(
        where=options.rdzv_endpoint,
        silence_s=read("keep_alive_interval", _KEEP_ALIVE_S) * attempts,
        rejoin_s=read("join_timeout", _JOIN_S),
        shutdown_s=float(_SHUTDOWN_S if shutdown_s is None else shutdown_s),
        num_again=options.max_restarts,
    )


@dataclass(frozen=True)
class _Ending:
    """How a launcher ended: with which status, and what was wrong with it, if anything."""

    status: int
    trouble: str
    had_contact: bool


def guard_launcher(launch: Callable[[Contact], int], plan: GuardPlan) -> int:
    """Run a launcher in a process of its own, and another one where it is lost.

    Args:
        launch: The launcher; returns its exit status.
        plan: When it counts as lost.

    Returns:
        The exit status of the last one; 128 + N if it was killed by signal N.
    """
    return _Guard(launch, plan).run()


class _Guard:
    def __init__(self, launch: Callable[[Contact], int], plan: GuardPlan) -> None:
        self._launch, self._plan = launch, plan
        self._pid = 0
        self._is_told_to_end = False
        self._num_again = 0
        # Until when another launcher may look for the others; None before the first was lost.
        self._search_until: float | None = None

    def run(self) -> int:
        adopt_orphans()
        with _handled(self._pass_on) as former:
            while True:
                ending = self._run_one(former)
                if not ending.trouble or self._is_told_to_end:
                    return ending.status
                self._end_orphans()
                if not self._may_start_again(ending):
                    return ending.status

    def _pass_on(self, number: int, _: FrameType | None) -> None:
        self._is_told_to_end = True
        if self._pid:
            # Slurm sends the last of them before it ends a job; torch's launcher would die of it.
            is_known = number != signal.SIGUSR1
            send_signal(self._pid, number if is_known else signal.SIGTERM)

    def _run_one(self, former: dict[int, Any]) -> _Ending:
        reader, writer = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(reader)
            _be_launcher(self._launch, Contact(writer), former)
        os.close(writer)
        os.set_blocking(reader, False)
        try:
            return self._watch(reader)
        finally:
            os.close(reader)
            self._pid = 0

    def _watch(self, reader: int) -> _Ending:
        said: set[int] = set()
        heard_at, hung_s = time.monotonic(), 0.0
        while True:
            wait_status = _reap(self._pid)
            words = _read(reader)
            said.update(words)
            if wait_status is not None:
                return self._judge(os.waitstatus_to_exitcode(wait_status), bytes(said), hung_s)
            now = time.monotonic()
            heard_at = now if words else heard_at
            limit_s = self._plan.silence_s if said else self._plan.first_answer_s
            if now > heard_at + limit_s and not self._is_told_to_end and not hung_s:
                hung_s = now - heard_at
                send_signal(self._pid, signal.SIGKILL)
            for pid in children_of(self._pid):
                wake_if_told_to_end(pid)
            time.sleep(_LOOK_S)

    def _judge(self, code: int, said: bytes, hung_s: float) -> _Ending:
        status = _FIRST_SIGNAL_STATUS - code if code < 0 else code
        if hung_s:
            trouble = f"had no answer from {self._plan.where} for {hung_s:.1f} s, and was ended"
            status = 1
        elif code < 0:
            trouble = f"was killed by signal {-code}"
        elif LOST in said and (TALKED in said or self._search_until is not None):
            trouble = f"lost its connection to {self._plan.where}"
        else:
            trouble = ""
        return _Ending(status, trouble, had_contact=TALKED in said)

    def _may_start_again(self, ending: _Ending) -> bool:
        """Say what happened, and return whether another launcher is to take over."""
        what = f"mm-dist run: this machine's launcher {ending.trouble}"
        if self._search_until is None or ending.had_contact:
            if not ending.had_contact or self._num_again >= self._plan.num_again:
                write_error(f"{what}; it is not started again (--max-restarts).")
                return False
            self._num_again += 1
            self._search_until = time.monotonic() + self._plan.rejoin_s
            write_error(
                f"{what}; another one takes its place ({self._num_again} of "
                f"{self._plan.num_again}), and looks for the others for {self._plan.rejoin_s:g} s."
            )
            return True
        if time.monotonic() < self._search_until:
            time.sleep(_PAUSE_S)
            return not self._is_told_to_end
        write_error(f"{what}, and none met the others within {self._plan.rejoin_s:g} s.")
        return False

    def _end_orphans(self) -> None:
        """End the ranks that a launcher has left behind, and what they have started."""
        end = time.monotonic() + self._plan.shutdown_s
        for pid in children_of(os.getpid()):
            send_signal(pid, signal.SIGTERM)
        number = signal.SIGCONT
        while alive := [pid for pid in descendants_of(os.getpid()) if is_alive(pid)]:
            if time.monotonic() > end:
                number = signal.SIGKILL
            for pid in alive:
                send_signal(pid, number)
            _reap(0)
            time.sleep(_LOOK_S)
        _reap(0)


def _be_launcher(
    launch: Callable[[Contact], int], contact: Contact, former: dict[int, Any]
) -> NoReturn:
    """Be the launcher, in the forked process; never return to what the guard still has to do."""
    status = 1
    try:
        for number, handler in former.items():
            signal.signal(number, handler)
        # Signals of a terminal come to the guard, which passes them on; else they came twice.
        os.setpgid(0, 0)
        end_with_parent()
        status = launch(contact)
    except MMDistError as error:
        write_error(f"mm-dist: {error}")
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001 (shown, as the interpreter would)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[dict[int, Any]]:
    """Handle the signals that end a launcher; yield and restore the handlers that were there."""
    numbers = [getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)]
    former = {number: signal.getsignal(number) for number in numbers}
    ignored = (signal.SIG_IGN, None)
    former = {number: each for number, each in former.items() if each not in ignored}
    for number in former:
        signal.signal(number, handler)
    try:
        yield former
    finally:
        for number, each in former.items():
            signal.signal(number, each)


def _reap(wanted: int) -> int | None:
    """Clear up after all children that have ended; return how the wanted one did, if it has."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        if pid == wanted:
            found = status


def _read(reader: int) -> bytes:
    """Return what the launcher has said since."""
    try:
        return os.read(reader, 1 << 16)
    except BlockingIOError:
        return b""
