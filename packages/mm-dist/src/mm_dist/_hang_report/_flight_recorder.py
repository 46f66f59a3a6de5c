"""Read torch's flight recorder, where this torch has one, and switch NCCL's on."""

import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mm_dist._hang_report._stack import Frame, locate
from mm_dist._torch_private import flight_recorders, has_common_flight_recorder

# The newer name, and the one that torch before 2.9 knows.
_BUFFER_VARIABLES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_BUFFER_SIZE = 2000
_NUM_KEPT = 8


@dataclass(frozen=True)
class Operation:
    """One collective that this rank has begun.

    Attributes:
        group: Name of its process group.
        backend: ``gloo``, ``nccl``, ...
        number: Its number among the collectives of that group; sends are not counted.
        operation: What it is, as ``all_reduce``.
        place: Where it was called, in the user's terms.
        sizes: Sizes and dtypes of the input, as text.
        is_pending: Whether it has not completed.
    """

    group: str
    backend: str
    number: int
    operation: str
    place: str
    sizes: str
    is_pending: bool


def read_operations() -> list[Operation]:
    """Return what each group has begun last, oldest first; empty where nothing records it.

    What is pending longest is among it, however far NCCL's host has run ahead of the device.
    """
    of_group: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for dump in flight_recorders():
        for entry in _read_entries(dump):
            key = str(entry["process_group"][0]), _backend_of(entry)
            of_group.setdefault(key, []).append(entry)
    return [operation for entries in of_group.values() for operation in _describe(entries)]


def read_flight_records() -> dict[str, bytes]:
    """Return what the recorders hold, by backend, as torch writes it; none that is empty."""
    records: dict[str, bytes] = {}
    for dump in flight_recorders():
        written = _write(dump)
        entries = _entries_in(written)
        if entries:
            records[_backend_of(entries[-1])] = written
    return records


def _read_entries(dump: Callable[..., bytes]) -> list[Mapping[str, Any]]:
    return [entry for entry in _entries_in(_write(dump)) if not entry.get("is_p2p")]


def _write(dump: Callable[..., bytes]) -> bytes:
    # For the stacks torch imports its compiler's front end, which takes seconds; so they are read
    # only where it is there already, as it is wherever DistributedDataParallel is used.
    is_stack_cheap = "torch._dynamo" in sys.modules
    try:
        return dump(includeStackTraces=is_stack_cheap)
    except (RuntimeError, TypeError, ValueError):
        return b""


def _entries_in(written: bytes) -> list[Mapping[str, Any]]:
    try:
        entries = pickle.loads(written).get("entries", [])  # noqa: S301 (torch wrote it just now)
    except (EOFError, TypeError, ValueError, pickle.UnpicklingError):
        return []
    return list(entries)


def _backend_of(entry: Mapping[str, Any]) -> str:
    return str(entry["profiling_name"]).rpartition(":")[0]


def _is_pending(entry: Mapping[str, Any]) -> bool:
    # gloo's entries stay 'scheduled' for ever; both backends retire what has completed.
    return entry.get("state") != "completed" and not entry.get("retired")


def _describe(entries: list[Mapping[str, Any]]) -> list[Operation]:
    # Where nothing is ever retired, as on gloo in some versions, nobody knows what is pending.
    is_end_noted = any(not _is_pending(entry) for entry in entries)
    older = [entry for entry in entries[:-_NUM_KEPT] if is_end_noted and _is_pending(entry)]
    kept = older[:_NUM_KEPT] + entries[-_NUM_KEPT:]
    return [_read(entry, is_pending=is_end_noted and _is_pending(entry)) for entry in kept]


def _read(entry: Mapping[str, Any], *, is_pending: bool) -> Operation:
    frames = [Frame(f["filename"], f["line"], f["name"]) for f in entry.get("frames", [])]
    return Operation(
        group=str(entry["process_group"][0]),
        backend=_backend_of(entry),
        number=int(entry.get("collective_seq_id", entry.get("seq_id", 0))),
        operation=str(entry["profiling_name"]).rpartition(":")[2].lstrip("_").lower(),
        place=locate(frames) if frames else "",
        sizes=f"{entry.get('input_sizes')} {entry.get('input_dtypes')}",
        is_pending=is_pending,
    )


def recorder_variables(backend: str | None, env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that make NCCL keep a record; none the user has chosen.

    They have to be set before the process group is created. torch has them on by default in some
    versions only. NCCL's watchdog then writes the record to a file as well when it gives up.
    """
    if backend is None or "nccl" not in backend:
        return {}
    wanted = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
    if not any(name in env for name in _BUFFER_VARIABLES):
        wanted[_BUFFER_VARIABLES[0 if has_common_flight_recorder() else 1]] = str(_BUFFER_SIZE)
    return {name: value for name, value in wanted.items() if name not in env}
