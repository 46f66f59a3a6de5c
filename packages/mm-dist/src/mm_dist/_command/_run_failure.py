"""Which rank failed first, and why: the last lines of ``mm-dist run``."""

import json
import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mm_dist._process_group._consequence import is_lost_peer
from mm_dist._process_group._error_line import shorten_error

PREEMPTED_STATUS = 75
_TAIL_LINES = 30
_SIGNAL_MEANINGS = {
    signal.SIGTERM: ": terminated by the scheduler or by hand",
    signal.SIGSEGV: ": crashed in native code",
    signal.SIGABRT: ": aborted by native code, whose message is in its output",
    getattr(signal, "SIGKILL", 9): ": killed, often by the kernel because memory ran out",
    getattr(signal, "SIGBUS", 7): ": often a full /dev/shm; give the container more shared memory",
}


@dataclass(frozen=True)
class RankFailure:
    """How one rank of this machine ended.

    Attributes:
        rank: Its number among all.
        local_rank: Its number on this machine.
        exit_code: Its exit status, or the negative signal.
        message: Type and message of its exception; empty where none was recorded.
        facts: What the rank recorded beside the message, as ``py_callstack``.
        when_ns: When it failed, in nanoseconds.
        folder: Where torch elastic keeps the files of this rank.
    """

    rank: int
    local_rank: int
    exit_code: int
    message: str
    facts: Mapping[str, Any]
    when_ns: int
    folder: Path

    @property
    def is_stopped_by_launcher(self) -> bool:
        """Whether the launcher ended it because of another rank."""
        return not self.message and self.exit_code == -signal.SIGTERM

    @property
    def is_consequence(self) -> bool:
        """Whether it only noticed that another rank was gone."""
        recorded = self.facts.get("is_consequence")
        # A script that does not call init_dist leaves no such record.
        return is_lost_peer(RuntimeError(self.message)) if recorded is None else bool(recorded)

    @property
    def status(self) -> int:
        """The exit status as a shell gives it: 128 + N after signal N."""
        return 128 - self.exit_code if self.exit_code < 0 else self.exit_code


def find_failures(failures: Mapping[int, Any], attempt: Path | None) -> list[RankFailure]:
    """Return how the ranks of this machine ended, the one that failed first at the front.

    Args:
        failures: torch's ``ProcessFailure`` of each rank that failed.
        attempt: The folder that torch made for the last attempt, with one folder per local rank.
    """
    by_local_rank = {failure.local_rank: failure for failure in failures.values()}
    first_rank = min(rank - failure.local_rank for rank, failure in failures.items())
    local_ranks = set(by_local_rank)
    if attempt is not None:
        # torch's list lacks a rank that was still printing its traceback when it was stopped.
        local_ranks |= {int(file.parent.name) for file in attempt.glob("*/error.json")}
    found = [
        _read_failure(first_rank, each, by_local_rank.get(each), (attempt or Path()) / str(each))
        for each in local_ranks
    ]
    return sorted(found, key=lambda f: (f.is_stopped_by_launcher, f.is_consequence, f.when_ns))


def _read_failure(
    first_rank: int, local_rank: int, failure: Any | None, folder: Path
) -> RankFailure:
    record = folder / "error.json"
    content = _read_record(record)
    message = str(content.get("message", ""))
    exit_code = failure.exitcode if failure is not None else -signal.SIGTERM
    if message and exit_code < 0:
        # It was ending on its own already when it was stopped.
        exit_code = int(content.get("errorCode") or 1)
    # torch counts whole seconds, rounded down: of two in one second, the silent one comes first.
    ended_ns = int(failure.timestamp) * 10**9 if failure is not None else 0
    return RankFailure(
        rank=first_rank + local_rank,
        local_rank=local_rank,
        exit_code=exit_code,
        message=message,
        facts=content.get("extraInfo") or {},
        when_ns=record.stat().st_mtime_ns if message else ended_ns,
        folder=folder,
    )


def _read_record(record: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(record.read_text(encoding="utf-8"))["message"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return content if isinstance(content, dict) else {"message": content}


def is_any_preempted(attempt: Path | None) -> bool:
    """Return whether a rank of this machine ended with the status that asks for a new start."""
    records = attempt.glob("*/error.json") if attempt is not None else []
    return any(_read_record(file).get("errorCode") == PREEMPTED_STATUS for file in records)


def describe_failures(failures: Sequence[RankFailure]) -> str:
    """Return the first failure's traceback, then who failed and why."""
    first, *others = failures
    callstack = str(first.facts.get("py_callstack") or "").rstrip()
    lines = ["--- mm-dist run: the rank that failed first ---"]
    lines += [callstack] if callstack else _read_log_tail(first)
    endings: dict[str, list[str]] = {}
    for other in others:
        endings.setdefault(_explain(other), []).append(str(other.rank))
    lines += [f"then rank {', '.join(ranks)}: {ending}" for ending, ranks in endings.items()]
    who = f"rank {first.rank} (local rank {first.local_rank} on {socket.gethostname()})"
    origin = first.facts.get("first_failure")
    if first.is_consequence and origin:
        wait = f" - {origin['wait']}" if origin.get("wait") else ""
        lines.append(f"then {who}: {_explain(first)}")
        lines.append(
            f"rank {origin['rank']} on {origin['host']} failed first: "
            f"{origin['error'] or 'it had left the group'}{wait} (on another machine: see its "
            "launcher's output)"
        )
    else:
        lines.append(f"{who} failed first: {_explain(first)}")
    return "\n".join(lines)


def _explain(failure: RankFailure) -> str:
    if failure.is_stopped_by_launcher:
        return "stopped by the launcher"
    ending = f"exit status {failure.status}"
    if failure.status == PREEMPTED_STATUS:
        ending = f"{ending} (preempted: asks to be started again)"
    if failure.message:
        after = " (it only noticed that another rank was gone)" if failure.is_consequence else ""
        wait = f" - {failure.facts['wait']}" if failure.facts.get("wait") else ""
        return f"{ending}{after}: {shorten_error(failure.message)}{wait}"
    if failure.exit_code < 0:
        number = -failure.exit_code
        known = {each.value: each.name for each in signal.Signals}
        meaning = _SIGNAL_MEANINGS.get(number, "")
        ending = f"signal {number} ({known.get(number, 'unknown')}{meaning})"
    return f"{ending}; it left no exception"


def _read_log_tail(failure: RankFailure) -> list[str]:
    # A message without a traceback is that of sys.exit("..."), and is complete.
    names = ("stderr.log", "stdout.log") if not failure.message else ()
    for log in (failure.folder / name for name in names):
        if log.is_file() and log.stat().st_size:
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:]
            return [f"its last lines in {log}:", *lines]
    return []
