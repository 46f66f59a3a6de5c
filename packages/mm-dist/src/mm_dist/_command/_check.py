"""``mm-dist check``: try the machines of a job before the job.

Before a process group exists, the ranks exchange messages through torch's store; rank 0 judges.
"""

import argparse
import hashlib
import json
import os
import platform
import socket
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from mm_dist._backends import choose_backend
from mm_dist._command._env import read_versions
from mm_dist._command._output import format_table, print_text
from mm_dist._devices import (
    available_device_type,
    count_devices,
    device_module,
    find_row,
    synchronize_device,
)
from mm_dist._errors import LaunchError, MMDistError
from mm_dist._launchers._environment import LaunchEnvironment
from mm_dist._launchers._selection import select_launcher
from mm_dist._process_group._arguments import read_timeout
from mm_dist._process_group._ending import destroy_dist
from mm_dist._process_group._init import init_dist
from mm_dist._rendezvous._address import own_address_towards, resolve
from mm_dist._rendezvous._store import open_store

_SLACK_S, _PAUSE_S, _CONNECT_LIMIT_S = 10.0, 0.05, 3.0
_SIZES = (8, 1024, 2**16, 2**20, 2**24)  # bytes
_WARM_UP, _REPEATS = 2, 10
_MOST_THREADS = 16
_UNREADABLE = "cannot be read"

Facts = Mapping[int, Mapping[str, Any]]


def run(options: argparse.Namespace) -> int:
    """Take part in the check as one rank; return 1 on rank 0 if it has found a problem, else 0."""
    limit = read_timeout(options.timeout)
    limit_s = 0.0 if limit is None else limit.total_seconds()
    environment = select_launcher(options.launcher, os.environ).read(os.environ)
    # An unknown backend is refused before the others wait for this rank.
    device_type = available_device_type()
    choose_backend(options.backend, device_type, is_warning=False)
    facts = read_facts(device_type, options.config)
    if environment.master_addr is None:
        return _report(environment, {0: facts}, find_differences({0: facts}), {})
    store = open_store(environment, limit_s)
    try:
        return _check(environment, options, limit_s, facts, store)
    except (TimeoutError, RuntimeError) as error:
        raise LaunchError(
            f"rank {environment.rank}: rank 0 at {environment.master_addr}:"
            f"{environment.master_port} stopped answering; look at its machine"
        ) from error


def _check(
    environment: LaunchEnvironment,
    options: argparse.Namespace,
    limit_s: float,
    facts: dict[str, Any],
    store: Any,
) -> int:
    rank, num_ranks = environment.rank, environment.world_size
    patience_s = 2 * limit_s + _SLACK_S
    # Of the interface that leads to rank 0.
    host = resolve(str(environment.master_addr), 0)[0][0]
    address = own_address_towards(host) or socket.gethostname()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    # Nothing accepts these connections: the system has completed them already.
    with socket.create_server((address, 0), family=family, backlog=num_ranks) as listener:
        place = {"address": address, "port": listener.getsockname()[1]}
        _post(store, f"facts/{rank}", facts | place)
        if rank == 0:
            # One message with all facts, so that each rank reads one and not one of every rank.
            _post(store, "table", _collect(store, "facts", range(num_ranks), limit_s))
        table = {int(other): each for other, each in _wait(store, "table", patience_s).items()}
        absent = set(range(num_ranks)) - set(table)
        _post(store, f"missed/{rank}", [] if absent else connect_to_others(rank, table, limit_s))
        problems: list[str] = []
        if rank == 0:
            missed = _collect(store, "missed", table, limit_s + _SLACK_S)
            problems += _name_absent(absent, f"of {num_ranks} did not come within {limit_s:g} s")
            problems += find_differences(table)
            problems += _name_absent(set(table) - set(missed), "came, and then stopped answering")
            problems += [text for each in missed.values() for text in each]
            _post(store, "is fine", not problems)
        is_fine = _wait(store, "is fine", patience_s)
    outcome = _time_all_reduces(options, limit_s) if is_fine else {}
    _post(store, f"outcome/{rank}", outcome)
    status = 0
    if rank == 0:
        # Also where nothing was timed: the store may end with this process.
        outcomes = _collect(store, "outcome", table, patience_s if is_fine else _SLACK_S)
        if is_fine:
            late = set(table) - set(outcomes)
            problems += _name_absent(late, "did not finish its all-reduces")
            errors = {other: each["error"] for other, each in outcomes.items() if "error" in each}
            problems += [f"rank {other}: {each}" for other, each in errors.items()]
        status = _report(environment, table, problems, outcomes)
    if "error" in outcome:
        # A group that failed may wait forever when it is destroyed.
        sys.stdout.flush()
        os._exit(status)
    return status


def read_facts(device_type: str, config: str | None) -> dict[str, Any]:
    """Return what must be equal on all ranks, as ``compared``, and the machine's name."""
    row = find_row(device_type)
    describe = getattr(device_module(row), "get_device_name", None)
    count = count_devices(row) if row.name != "cpu" else 0
    compared = {
        **read_versions(),
        "device type": row.name,
        "device count": str(count),
        "device name": str(describe(0)) if describe is not None and count else "",
    }
    if config is not None:
        try:
            digest = hashlib.sha256(Path(config).read_bytes()).hexdigest()
            compared["config"] = f"sha256:{digest}"
        except OSError as error:
            compared["config"] = f"{_UNREADABLE}: {error.strerror}: {config}"
    return {"host": platform.node(), "compared": compared}


def find_differences(table: Facts) -> list[str]:
    """Describe each fact of a rank that differs from most ranks."""
    problems = []
    for name in dict.fromkeys(name for each in table.values() for name in each["compared"]):
        values = {rank: each["compared"].get(name, "not installed") for rank, each in table.items()}
        readable = [v for _, v in sorted(values.items()) if not v.startswith(_UNREADABLE)]
        expected = Counter(readable).most_common(1)[0][0] if readable else ""
        others = f", that of the others is {expected}" if expected else ""
        problems += [
            f"rank {rank} on {table[rank]['host']} differs: its {name} is {value or 'none'}{others}"
            for rank, value in values.items()
            if value != expected
        ]
    return problems


def connect_to_others(rank: int, table: Facts, limit_s: float) -> list[str]:
    """Connect to every other rank; describe each that could not be reached."""
    end = time.monotonic() + limit_s
    here = f"rank {rank} on {table[rank]['host']}"

    def connect(other: int) -> str | None:
        place = (table[other]["address"], table[other]["port"])
        limit = min(_CONNECT_LIMIT_S, max(end - time.monotonic(), 0.01))
        try:
            socket.create_connection(place, timeout=limit).close()
        except OSError as error:
            there = f"rank {other} on {table[other]['host']}"
            return f"{here} cannot reach {there}: {place[0]}:{place[1]} {error}"
        return None

    # Each rank begins with the next one, so that they do not all connect to rank 0 at once.
    others = sorted(table.keys() - {rank}, key=lambda other: (other < rank, other))
    with ThreadPoolExecutor(_MOST_THREADS) as pool:
        return [text for text in pool.map(connect, others) if text]


def _name_absent(ranks: Iterable[int], what: str) -> list[str]:
    return [f"rank {rank} {what}; look at its machine" for rank in sorted(ranks)]


def _time_all_reduces(options: argparse.Namespace, limit_s: float) -> dict[str, Any]:
    """Return this rank's median seconds of an all-reduce by size in bytes, or its error."""
    medians: dict[str, float] = {}
    try:
        info = init_dist(options.launcher, options.backend, timeout=limit_s)
        for size in _SIZES:
            tensor, times = torch.zeros(size // 4, device=info.device), []
            for _ in range(_WARM_UP + _REPEATS):
                start = time.perf_counter()
                dist.all_reduce(tensor)
                synchronize_device(tensor.device)
                times.append(time.perf_counter() - start)
            medians[str(size)] = statistics.median(times[_WARM_UP:])
        destroy_dist()
    except (MMDistError, RuntimeError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"times": medians, "backend": info.backend}


def _report(
    environment: LaunchEnvironment, table: Facts, problems: list[str], outcomes: Facts
) -> int:
    """Print the report, and return rank 0's exit status."""
    came = f"{len(table)} of {environment.world_size} ranks"
    parts = [
        f"mm-dist check: {came}, launcher {environment.launcher}",
        format_table(["compared", "on rank 0"], table[0]["compared"].items()),
    ]
    if outcomes and not problems:
        speed = describe_speed({rank: each["times"] for rank, each in outcomes.items()})
        parts.append(f"all-reduce with {outcomes[0]['backend']}:\n{speed}")
    parts += [f"problem: {problem}" for problem in problems]
    if not problems:
        parts.append("all is well: every rank came, is equal to the others and reaches them")
    print_text("\n\n".join(parts))
    return int(bool(problems))


def describe_speed(times: Mapping[int, Mapping[str, float]]) -> str:
    """Return a table with the time and the bus bandwidth of the slowest rank, by size."""
    rows = []
    for size in times[0]:
        slowest = max(times, key=lambda rank: times[rank][size])
        seconds = times[slowest][size]
        bandwidth = int(size) / seconds / 1e9 * 2 * (len(times) - 1) / len(times)
        rows.append([size, f"{seconds * 1e3:.3f}", f"{bandwidth:.3f}", str(slowest)])
    return format_table(["bytes", "median ms", "bus GB/s", "slowest rank"], rows)


# ------------------------------------------------------------------------ messages in the store


def _post(store: Any, name: str, value: Any) -> None:
    store.set(f"mm_dist_check/{name}", json.dumps(value))
    store.add(f"mm_dist_check/{name}/there", 1)


def _wait(store: Any, name: str, limit_s: float) -> Any:
    """Return a message. Polls: stores before torch 2.1 answer wrongly after a timeout."""
    end = time.monotonic() + limit_s
    while store.add(f"mm_dist_check/{name}/there", 0) == 0:
        if time.monotonic() >= end:
            raise TimeoutError(name)
        time.sleep(_PAUSE_S)
    return json.loads(store.get(f"mm_dist_check/{name}"))


def _collect(store: Any, name: str, ranks: Iterable[int], limit_s: float) -> dict[int, Any]:
    """Return the messages ``name/RANK`` that come in time."""
    end = time.monotonic() + limit_s
    found: dict[int, Any] = {}
    for rank in ranks:
        with suppress(TimeoutError):
            found[rank] = _wait(store, f"{name}/{rank}", max(end - time.monotonic(), 0))
    return found
