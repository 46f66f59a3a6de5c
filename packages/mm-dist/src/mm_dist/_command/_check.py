"""``mm-dist check``: try the machines of a job before the job.

Before a process group exists, the ranks leave notes for each other in torch's store. Rank 0 judges.
"""

import argparse
import json
import os
import socket
import statistics
import sys
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist

from mm_dist._backends import choose_backend
from mm_dist._command._check_report import Problem, Report, find_differences, find_unreachable
from mm_dist._command._output import check_json_target, write_error, write_json, write_line
from mm_dist._command._versions import read_facts
from mm_dist._device_choice import available_device_type
from mm_dist._devices import synchronize_device
from mm_dist._errors import LaunchError, MMDistError
from mm_dist._launchers import LaunchEnvironment, select_launcher
from mm_dist._process_group import destroy_dist, init_dist
from mm_dist._rendezvous._address import resolve
from mm_dist._rendezvous._interface import own_addresses
from mm_dist._rendezvous._store import open_store
from mm_dist._timeout import read_timeout

_FIRST_RANK_STATUS = 10
_SLACK_S, _FAREWELL_S, _PAUSE_S = 10.0, 5.0, 0.05
_CONNECT_LIMIT_S, _MOST_THREADS = 3.0, 16
_SIZES = (8, 1024, 2**16, 2**20, 2**22, 2**24, 2**26, 2**28)
_WARM_UP, _REPEATS = 2, 10
_ELEMENT_BYTES = 4


def check_cluster(options: argparse.Namespace) -> int:
    """Take part in the check as one rank.

    Returns:
        The exit status: 10 + its number (at most 74) on the lowest rank to look at (on rank 0
        where that one is absent), 1 on rank 0 for another failure, 0 on all others.

    Raises:
        ConfigError: If an option cannot be used.
        LaunchError: If the environment does not fit the launcher.
    """
    limit = read_timeout(options.timeout)
    limit_s = limit.total_seconds() if limit is not None else 0.0
    environment = select_launcher(options.launcher, os.environ).read(os.environ)
    # An unknown backend is refused before the others wait for this rank.
    device_type = options.device_type or available_device_type()
    choose_backend(options.backend, device_type, is_warning=False)
    if environment.rank == 0:
        check_json_target(options.json)
    facts = read_facts(device_type, options.config)
    report = Report(environment.launcher, environment.world_size)
    if environment.master_addr is None:
        report.facts = {0: facts}
        report.problems = find_differences(report.facts)
        return _finish(report, options)
    try:
        board = _Board(open_store(environment, limit_s))
    except LaunchError as error:
        write_error(f"mm-dist check: {error}")
        return _FIRST_RANK_STATUS
    try:
        return _check(environment, options, limit_s, facts, board, report)
    except (TimeoutError, RuntimeError):
        write_error(
            f"mm-dist check: rank {environment.rank}: rank 0 at {environment.master_addr}:"
            f"{environment.master_port} fell silent; look at its machine"
        )
        return _FIRST_RANK_STATUS


def _check(
    environment: LaunchEnvironment,
    options: argparse.Namespace,
    limit_s: float,
    facts: dict[str, Any],
    board: "_Board",
    report: Report,
) -> int:
    rank, num_ranks = environment.rank, environment.world_size
    patience_s = 2 * limit_s + _SLACK_S
    # Nobody accepts what comes here: the system has connected it already.
    with _listen(num_ranks) as listener:
        host = resolve(str(environment.master_addr), 0)[0][0]
        facts |= {"addresses": own_addresses(host), "port": listener.getsockname()[1]}
        board.post(f"facts/{rank}", facts)
        if rank == 0:
            # One note with all: each rank reads one, and not one from every other rank.
            board.post("table", board.collect("facts", range(num_ranks), limit_s))
        table = {int(other): each for other, each in board.wait("table", patience_s).items()}
        if len(table) == num_ranks:
            board.post(f"missed/{rank}", connect_to_others(rank, table, limit_s))
        if rank == 0:
            report.facts = table
            report.problems = _find_problems(report, board, limit_s)
            board.post("can measure", not report.problems)
        can_measure = board.wait("can measure", patience_s)
    outcome: dict[str, Any] = {}
    if can_measure:
        outcome = _measure(options, limit_s)
        board.post(f"speed/{rank}", outcome)
    status = 0
    if rank == 0:
        if can_measure:
            _judge_speed(report, board, patience_s)
        status = _finish(report, options)
        board.post("verdict", [report.status, report.speaker, report.reason])
    all_status, speaker, reason = board.wait("verdict", patience_s + limit_s)
    if speaker == rank and rank != 0:
        write_error(f"mm-dist check: {reason}")
        status = all_status
    board.post(f"gone/{rank}", "")
    if rank == 0:
        # The store may end with this process.
        board.collect("gone", table, _FAREWELL_S)
    if "error" in outcome:
        # A group that failed may wait for ever for its end.
        sys.stdout.flush()
        os._exit(status)
    return status


def _finish(report: Report, options: argparse.Namespace) -> int:
    """Write the report, and return the exit status of this rank, 0."""
    if options.json:
        write_json(report.as_json(), options.json)
    if options.json != "-":
        write_line(report.as_text())
    return report.status if report.speaker == 0 else 0


def _find_problems(report: Report, board: "_Board", limit_s: float) -> list[Problem]:
    table, num_ranks = report.facts, report.num_ranks
    absent = [rank for rank in range(num_ranks) if rank not in table]
    if absent:
        return [
            *report.describe_absent(absent, f"did not come within {limit_s:g} s"),
            *find_differences(table),
        ]
    missed = board.collect("missed", table, limit_s + _SLACK_S)
    silent = [rank for rank in range(num_ranks) if rank not in missed]
    return [
        *report.describe_absent(silent, "came, and then fell silent"),
        *find_differences(table),
        *find_unreachable(missed, {rank: each["host"] for rank, each in table.items()}),
    ]


def _listen(num_ranks: int) -> socket.socket:
    # A kernel that has IPv6 may have it switched off.
    with suppress(OSError):
        if socket.has_dualstack_ipv6():
            family = socket.AF_INET6
            return socket.create_server(
                ("", 0), family=family, dualstack_ipv6=True, backlog=num_ranks
            )
    return socket.create_server(("", 0), backlog=num_ranks)


def connect_to_others(
    rank: int, table: Mapping[int, Mapping[str, Any]], limit_s: float
) -> dict[str, list[str]]:
    """Connect to every other rank; return what was tried for those that could not be reached.

    Args:
        rank: This rank.
        table: Of each rank ``addresses`` and ``port``.
        limit_s: When the time is over, the ranks that are left count as not reached.
    """
    end = time.monotonic() + limit_s

    def connect(other: int) -> list[str]:
        tried = []
        for address in table[other]["addresses"]:
            place = (address, table[other]["port"])
            limit = min(_CONNECT_LIMIT_S, max(end - time.monotonic(), 0.01))
            try:
                socket.create_connection(place, timeout=limit).close()
            except OSError as error:
                tried.append(f"{address}:{place[1]} {error}")
            else:
                return []
        return tried or ["it has no address that others could use"]

    ranks = sorted(table)
    start = ranks.index(rank)
    # Each begins with the next one, so that they do not all come to rank 0 at once.
    others = ranks[start + 1 :] + ranks[:start]
    with ThreadPoolExecutor(min(_MOST_THREADS, max(1, len(others)))) as pool:
        tried = pool.map(connect, others)
        return {str(other): each for other, each in zip(others, tried, strict=True) if each}


def _measure(options: argparse.Namespace, limit_s: float) -> dict[str, Any]:
    """Return this rank's median seconds of an all-reduce, by size in bytes."""
    times: dict[str, float] = {}
    try:
        info = init_dist(
            options.launcher, options.backend, timeout=limit_s, device_type=options.device_type
        )
        for size in _SIZES:
            if size <= options.max_size:
                tensor = torch.zeros(size // _ELEMENT_BYTES, device=info.device)
                times[str(size)] = _time_all_reduce(tensor)
        destroy_dist()
    except (MMDistError, RuntimeError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"times": times, "backend": info.backend}


def _time_all_reduce(tensor: torch.Tensor) -> float:
    times = []
    for index in range(_WARM_UP + _REPEATS):
        start = time.perf_counter()
        dist.all_reduce(tensor)
        synchronize_device(tensor.device)
        if index >= _WARM_UP:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def _judge_speed(report: Report, board: "_Board", limit_s: float) -> None:
    outcomes = board.collect("speed", range(report.num_ranks), limit_s)
    silent = [rank for rank in range(report.num_ranks) if rank not in outcomes]
    report.problems += report.describe_absent(silent, "did not finish its all-reduces")
    for rank, outcome in outcomes.items():
        if "error" in outcome:
            report.problems.append(Problem("group", None, f"rank {rank}: {outcome['error']}"))
    if not report.problems:
        report.add_speed(
            outcomes[0]["backend"], {rank: each["times"] for rank, each in outcomes.items()}
        )


class _Board:
    """Notes that ranks leave for each other in torch's store.

    Nothing waits inside the store: after a wait that timed out, stores before torch 2.1 give
    wrong answers.
    """

    def __init__(self, store: Any) -> None:
        self._store = store

    def post(self, name: str, value: Any) -> None:
        """Leave a note, once."""
        self._store.set(f"mm_dist_check/{name}", json.dumps(value))
        self._store.add(f"mm_dist_check/{name}/there", 1)

    def wait(self, name: str, limit_s: float) -> Any:
        """Return a note as soon as it is there.

        Raises:
            TimeoutError: If the time is over.
        """
        end = time.monotonic() + limit_s
        while self._store.add(f"mm_dist_check/{name}/there", 0) == 0:
            if time.monotonic() >= end:
                raise TimeoutError(name)
            time.sleep(_PAUSE_S)
        return json.loads(self._store.get(f"mm_dist_check/{name}"))

    def collect(self, name: str, ranks: Iterable[int], limit_s: float) -> dict[int, Any]:
        """Return the notes ``name/RANK`` that are there in time."""
        end = time.monotonic() + limit_s
        found: dict[int, Any] = {}
        for rank in ranks:
            with suppress(TimeoutError):
                found[rank] = self.wait(f"{name}/{rank}", max(end - time.monotonic(), 0))
        return found
