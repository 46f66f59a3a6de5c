"""Whose child a process is, and what becomes of it when its parent dies; Linux only."""

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_SET_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36
_PROC = Path("/proc")


def adopt_orphans() -> None:
    """Become the parent of all descendants whose own parent dies."""
    _control_process(_SET_CHILD_SUBREAPER, 1)


def end_with_parent() -> None:
    """Let SIGTERM come to this process when its parent dies, however that happens."""
    _control_process(_SET_DEATH_SIGNAL, signal.SIGTERM)


def _control_process(option: int, value: int) -> None:
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def children_of(pid: int) -> list[int]:
    """Return the children of a process; none where the system does not tell."""
    found: list[int] = []
    for file in _PROC.glob(f"{pid}/task/*/children"):
        with suppress(OSError):
            found += map(int, file.read_text(encoding="ascii").split())
    return found


def descendants_of(pid: int) -> Iterator[int]:
    """Yield the children of a process, theirs, and so on."""
    for child in children_of(pid):
        yield child
        yield from descendants_of(child)


def is_alive(pid: int) -> bool:
    """Return whether a process runs, or could: one that waits for its parent to notice does not."""
    return _read_status(pid).get("State", "Z")[0] not in "ZX"


def wake_if_told_to_end(pid: int) -> None:
    """Let a stopped process go on if SIGTERM waits for it, which it cannot act on otherwise."""
    status = _read_status(pid)
    is_stopped = status.get("State", "Z")[0] == "T"
    waiting = int(status.get("ShdPnd", "0"), 16) | int(status.get("SigPnd", "0"), 16)
    if is_stopped and waiting & (1 << (signal.SIGTERM - 1)):
        send_signal(pid, signal.SIGCONT)


def send_signal(pid: int, number: int) -> None:
    """Send a signal to a process that may have ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _read_status(pid: int) -> dict[str, str]:
    try:
        text = (_PROC / str(pid) / "status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in pairs}
