"""Read an exception: its one line, whether it follows from another rank's, and torch's record."""

import json
import os
import re
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ERROR_FILE_VARIABLE = "TORCHELASTIC_ERROR_FILE"
_MOST_CHARACTERS = 300
_TRACEBACK = "Traceback (most recent call last)"
# The launcher takes the earliest failure for the cause. Times are whole seconds, and that of a
# rank that was killed is when the launcher looked, up to 5 s later.
_CONSEQUENCE_DELAY_S = 10
# In the words of gloo, NCCL, HCCL and torch's store.
_LOST_PEER = re.compile(
    r"connection (was )?(closed|reset|refused) by (remote )?peer"
    r"|broken pipe|socket closed|remote server shutdown or crash"
    r"|ncclRemoteError|remote process exited"
    r"|ncclCommAbort|communicator was aborted|aborted communicator"
    r"|failed to recv, got 0 bytes|recv, 0 bytes",
    re.IGNORECASE,
)
_TIMED_OUT = re.compile(
    r"timed out waiting \d+ ?ms|wait timeout after \d+ ?ms|socket timeout"
    r"|watchdog caught collective operation timeout"
    r"|failed to pass monitoredBarrier|application timeout caused pair closure",
    re.IGNORECASE,
)


def describe_error(error: BaseException) -> str:
    """Return type and message of an exception in one line."""
    kind = type(error).__name__
    return shorten_error(f"{kind}: {error}" if str(error) else kind)


def shorten_error(text: str) -> str:
    """Return the most informative line of ``ValueError: boom``; of a nested error, two."""
    outer = _first_line(text)
    # So torch writes the traceback of an exception from a worker of the DataLoader.
    if f"Original {_TRACEBACK}" not in text:
        return outer
    frames_and_cause = text.rpartition(_TRACEBACK)[2].splitlines()[1:]
    cause = _first_line("\n".join(line for line in frames_and_cause if not line.startswith(" ")))
    return f"{outer} {cause}".strip()


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    line = lines[0] if lines else ""
    if line.endswith(":") and len(lines) > 1:
        # It only announces the next: the type alone, or the heading of a list.
        line = f"{line} {lines[1]}"
    return line if len(line) <= _MOST_CHARACTERS else f"{line[:_MOST_CHARACTERS]}..."


def is_lost_peer(error: BaseException) -> bool:
    """Return whether an error says that a connection to another rank broke."""
    return any(_LOST_PEER.search(text) for text in _read_chain(error))


def is_timeout(error: BaseException) -> bool:
    """Return whether an error says that other ranks did not come in time."""
    return any(_TIMED_OUT.search(text) for text in _read_chain(error))


def _read_chain(error: BaseException) -> Iterator[str]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        # torch's network errors derive from it; other broken connections do not.
        if isinstance(current, RuntimeError):
            yield str(current)
        current = current.__cause__ or current.__context__


def write_error_file(error: BaseException, facts: dict[str, Any], last_line: str) -> None:
    """Record an exception as torch's ``record`` does, unless something has done so already."""
    path = Path(os.environ.get(ERROR_FILE_VARIABLE, ""))
    if not path.name or path.exists():
        return
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    delay_s = _CONSEQUENCE_DELAY_S if facts.get("is_consequence") else 0
    extra = {
        **facts,
        "py_callstack": f"{trace.rstrip()}\n{last_line}",
        "timestamp": str(int(time.time()) + delay_s),
    }
    message = f"{type(error).__name__}: {error}"
    unfinished = path.with_name(f"{path.name}.unfinished")
    # Whole or not at all: the launcher may read it at any moment.
    content = json.dumps({"message": {"message": message, "extraInfo": extra}})
    unfinished.write_text(content, encoding="utf-8")
    unfinished.replace(path)
