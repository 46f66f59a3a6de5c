"""Report an uncaught exception that ends a rank, and release the ranks that wait for it."""

import ctypes
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from types import TracebackType
from typing import Any

from mm_dist._rendezvous._store import call_in_time
from mm_dist._state import DistInfo, OwnGroup, find_own_group, state
from mm_dist._torch_private import find_abort, list_groups
from mm_dist.diagnose._error import describe_error, is_lost_peer, is_timeout, write_error_file
from mm_dist.diagnose._failure_board import NO_WORD, FailureBoard, FailureRecord

_ABORT_LIMIT_S = 5.0
# The launcher ends all ranks as soon as it sees one end: so the consequences end later.
_CONSEQUENCE_PAUSE_S = 1.0
# What a store gets that has not answered the hang report either: rank 0 is frozen, or cut off. A
# rank ends within five seconds of its timeout, whatever it has to say.
_SILENT_S = 0.5


def install_failure_hook(
    info: DistInfo, board: FailureBoard, *, former: Any, is_host: bool
) -> Callable[[], None]:
    """Chain ``sys.excepthook``: an uncaught exception is reported, and releases waiting ranks."""
    previous, pid, is_over = sys.excepthook, os.getpid(), False

    def report(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        own = find_own_group()
        if is_over or os.getpid() != pid or own is None or is_interactive():
            # A forked child is no rank; without a group no other rank waits; and at a prompt
            # the program continues. A hook that somebody has put around this one may call it late.
            previous(kind, error, trace)
            return
        line, is_consequence = _record(info, board, error, own.hang_report)
        previous(kind, error, trace)
        with suppress(Exception):
            sys.stdout.flush()
            # One write, so that lines of several ranks do not mix.
            sys.stderr.write(f"{line.rstrip()}\n")
            sys.stderr.flush()
        release_peers(own)
        if is_host and is_consequence:
            board.wait_for_readers()

    sys.excepthook = report

    def restore() -> None:
        nonlocal is_over
        is_over = True
        if sys.excepthook is report:
            sys.excepthook = former

    return restore


def is_interactive() -> bool:
    """Return whether an exception leads back to a prompt."""
    return hasattr(sys, "ps1") or bool(sys.flags.inspect)


def _record(
    info: DistInfo, board: FailureBoard, error: BaseException, hang_report: Any
) -> tuple[str, bool]:
    """Record the failure for the other ranks and the launcher."""
    wait = ""
    if hang_report is not None:
        # A report that fails must not hide what it reports.
        with suppress(Exception):
            wait = hang_report.explain(error)
    own = FailureRecord(info.rank, info.world_size, describe_error(error), wait)
    is_lost = is_lost_peer(error)
    is_silent = hang_report is not None and hang_report.is_store_silent
    first, is_store_there = board.exchange(
        own, is_consequence=is_lost, limit_s=_SILENT_S if is_silent else None
    )
    is_consequence = is_lost or (first is not None and is_timeout(error))
    who = own.name_rank()
    if not is_consequence:
        line = own.describe() + ("" if first is None else f" (after {first.describe()})")
    elif first is not None:
        line = f"{who} stopped because {first.describe()}"
    elif not is_store_there and own.rank != 0:
        line = f"{who} stopped because rank 0 had ended, see its output; {own.error}"
    else:
        line = f"{who} stopped because it lost another rank: {NO_WORD}; {own.error}"
    line = f"mm-dist: {line}" if wait in line else f"mm-dist: {line} - {wait}"
    facts = {
        "is_consequence": is_consequence,
        "wait": wait,
        "rank": own.rank,
        "host": own.host,
        "first_failure": None if first is None else asdict(first),
    }
    if isinstance(error, Exception):
        # A report that fails must not hide what it reports.
        with suppress(Exception):
            write_error_file(error, facts, line)
    if is_consequence:
        time.sleep(_CONSEQUENCE_PAUSE_S)
    return line, is_consequence


def release_peers(own: OwnGroup) -> None:
    """Release the ranks that wait for this one, and its exit from waiting for them."""
    state.failed = own.info
    # A reference that is never given back: destroying a group waits for its collectives.
    for group, _ in list_groups():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
    abort_groups()
    own.group = None


def abort_groups() -> None:
    """Break the connections of NCCL and its like, and let torch forget all groups."""
    abort = find_abort()
    if abort is not None:
        # A device that does not answer must not keep this process.
        call_in_time(_ABORT_LIMIT_S, abort)
