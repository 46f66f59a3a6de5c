"""Which rank failed first, why, and how to say it last."""

import json
import os
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
    "SIGKILL": "killed, often by the kernel because memory ran out",
    "SIGTERM": "told to end, by the scheduler or by hand",
    "SIGINT": "interrupted",
    "SIGSEGV": "crashed in native code",
    "SIGABRT": "aborted by native code, whose message is in its output",
    "SIGBUS": "often a full /dev/shm; give the container more shared memory",
}


@dataclass(frozen=True)
class RankFailure:
    """How one rank of this machine ended.

    Attributes:
        rank: Its number among all.
        local_rank: Its number on this machine.
        exit_code: Its exit status, or the negative signal.
        message: Type and message of its exception; empty where none was recorded.
        wait: Whom it waited for in vain, in one sentence; empty if that is not what ended it.
        callstack: Its traceback, message included; empty where none was recorded.
        when_ns: When it was recorded, in nanoseconds; when it ended if nothing was recorded.
        is_consequence: Whether it only noticed that another rank was gone.
        elsewhere: What it was told about the rank that failed first; empty if nothing.
        folder: Where torch elastic kept what belongs to this rank.
    """

    rank: int
    local_rank: int
    exit_code: int
    message: str
    wait: str
    callstack: str
    when_ns: int
    is_consequence: bool
    elsewhere: str
    folder: Path

    @property
    def is_stopped_by_launcher(self) -> bool:
        """Whether it was told to end because of another rank."""
        return not self.message and self.exit_code == -signal.SIGTERM

    @property
    def status(self) -> int:
        """The exit status as a shell gives it: 128 + N after signal N."""
        return 128 - self.exit_code if self.exit_code < 0 else self.exit_code


def find_failures(failures: Mapping[int, Any], attempt: Path | None) -> list[RankFailure]:
    """Return how the ranks of this machine ended, the one that failed first at the front.

    Args:
        failures: torch's ``ProcessFailure`` of each rank that did not end well.
        attempt: The folder that torch made for the last attempt, with one folder per local rank.
    """
    by_local_rank = {failure.local_rank: failure for failure in failures.values()}
    first_rank = min(rank - failure.local_rank for rank, failure in failures.items())
    local_ranks = set(by_local_rank)
    if attempt is not None:
        # A rank that was still printing its traceback when it was told to end is not in torch's
        # list, or there with the signal; its record tells.
        local_ranks |= {int(file.parent.name) for file in attempt.glob("*/error.json")}
    found = [
        _read_failure(first_rank, local_rank, by_local_rank.get(local_rank), attempt)
        for local_rank in sorted(local_ranks)
    ]
    return sorted(found, key=lambda failure: (*_order(failure), failure.rank))


def _order(failure: RankFailure) -> tuple[bool, bool, int]:
    return failure.is_stopped_by_launcher, failure.is_consequence, failure.when_ns


def _read_failure(
    first_rank: int, local_rank: int, failure: Any | None, attempt: Path | None
) -> RankFailure:
    folder = (attempt or Path()) / str(local_rank)
    record = folder / "error.json"
    content = _read_record(record)
    message, extra = str(content.get("message", "")), content.get("extraInfo") or {}
    exit_code = failure.exitcode if failure is not None else -signal.SIGTERM
    if message and exit_code < 0:
        # It was ending on its own already when it was told to end.
        exit_code = int(content.get("errorCode") or 1)
    return RankFailure(
        rank=first_rank + local_rank,
        local_rank=local_rank,
        exit_code=exit_code,
        message=message,
        wait=str(extra.get("wait") or ""),
        callstack=str(extra.get("py_callstack") or ""),
        when_ns=record.stat().st_mtime_ns if message else _end_ns(failure),
        is_consequence=_is_consequence(message, extra),
        elsewhere=_describe_elsewhere(extra),
        folder=folder,
    )


def _end_ns(failure: Any | None) -> int:
    # torch counts whole seconds, rounded down: of two in one second, the silent one counts as the
    # first, for what is recorded often is only what the others noticed.
    return int(failure.timestamp) * 10**9 if failure is not None else 0


def _read_record(record: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(record.read_text(encoding="utf-8"))["message"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return content if isinstance(content, dict) else {"message": content}


def _is_consequence(message: str, extra: Mapping[str, Any]) -> bool:
    said = extra.get("is_consequence")
    # A script that does not use init_dist leaves no such word.
    return is_lost_peer(RuntimeError(message)) if said is None else bool(said)


def _describe_elsewhere(extra: Mapping[str, Any]) -> str:
    first = extra.get("first_failure")
    if not first:
        return ""
    what = first["error"] or "it had left the group"
    wait = f" - {first['wait']}" if first.get("wait") else ""
    return f"rank {first['rank']} on {first['host']} failed first: {what}{wait}"


def find_preempted(attempt: Path | None) -> bool:
    """Return whether a rank of this machine ended with the status that asks for a new start."""
    records = attempt.glob("*/error.json") if attempt is not None else []
    return any(_read_record(file).get("errorCode") == PREEMPTED_STATUS for file in records)


def describe_failures(failures: Sequence[RankFailure]) -> str:
    """Return what a launcher prints last: the first failure's traceback, then who and why."""
    first, *others = failures
    details = [first.callstack.rstrip()] if first.callstack else _tail_of_log(first)
    lines = ["--- mm-dist run: the rank that failed first ---", *details]
    endings: dict[str, list[str]] = {}
    for other in others:
        endings.setdefault(_explain(other), []).append(str(other.rank))
    lines += [f"then rank {', '.join(ranks)}: {ending}" for ending, ranks in endings.items()]
    where = f"local rank {first.local_rank} on {socket.gethostname()}"
    if first.is_consequence and first.elsewhere:
        lines.append(f"then rank {first.rank} ({where}): {_explain(first)}")
        lines.append(f"{first.elsewhere} (on another machine: see its launcher's output)")
    else:
        lines.append(f"rank {first.rank} ({where}) failed first: {_explain(first)}")
    return "\n".join(lines)


def _explain(failure: RankFailure) -> str:
    if failure.is_stopped_by_launcher:
        return "stopped by the launcher"
    after = " (it only noticed that another rank was gone)" if failure.is_consequence else ""
    if failure.message:
        brief = shorten_error(failure.message)
        wait = f" - {failure.wait}" if failure.wait else ""
        return f"exit status {failure.status}{_meaning(failure)}{after}: {brief}{wait}"
    return f"{_meaning_of_code(failure)}; it left no exception"


def _meaning(failure: RankFailure) -> str:
    return " (preempted: asks to be started again)" if failure.status == PREEMPTED_STATUS else ""


def _meaning_of_code(failure: RankFailure) -> str:
    code = failure.exit_code
    if code >= 0:
        return f"exit status {code}{_meaning(failure)}"
    name = _signal_name(-code)
    meaning = _SIGNAL_MEANINGS.get(name)
    return f"signal {-code} ({name}{': ' + meaning if meaning else ''})"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def _tail_of_log(failure: RankFailure) -> list[str]:
    # A message without a traceback is that of sys.exit("..."), and says all.
    names = ("stderr.log", "stdout.log") if not failure.message else ()
    for log in (failure.folder / name for name in names):
        if log.is_file() and log.stat().st_size:
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:]
            return [f"its last lines in {os.fspath(log)}:", *lines]
    return []
