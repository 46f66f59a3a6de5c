"""``mm-dist check``: try the machines of a job before the job.

All ranks meet over gloo, which connects each with each, and compare what must be equal; then they
time the backend of the job.
"""

import argparse
import hashlib
import platform
import statistics
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from mm_dist._collectives._objects import all_gather_object
from mm_dist._command._env import read_versions
from mm_dist._command._output import format_table, print_text
from mm_dist._devices import count_devices, device_module, find_row, synchronize_device
from mm_dist._process_group._arguments import check_dist_arguments
from mm_dist._process_group._ending import destroy_dist
from mm_dist._process_group._init import init_dist
from mm_dist._state import DistInfo

_SIZES = (8, 1024, 2**16, 2**20, 2**24)  # bytes
_WARM_UP, _REPEATS = 2, 10

Facts = Mapping[int, Mapping[str, Any]]


def run(options: argparse.Namespace) -> int:
    """Take part in the check as one rank; return 1 on rank 0 if it has found a problem, else 0."""
    check_dist_arguments(options.launcher, options.backend, timeout=options.timeout)
    info = init_dist(options.launcher, "gloo", timeout=options.timeout)
    table = dict(enumerate(all_gather_object(read_facts(info.device.type, options.config))))
    destroy_dist()
    problems = find_differences(table)
    speed = _time_all_reduces(options) if info.backend and not problems else ""
    if info.rank != 0:
        return 0
    _report(info, table, problems, speed)
    return int(bool(problems))


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
        digest = hashlib.sha256(Path(config).read_bytes()).hexdigest()
        compared["config"] = f"sha256:{digest}"
    return {"host": platform.node(), "compared": compared}


def find_differences(table: Facts) -> list[str]:
    """Describe each fact of a rank that differs from most ranks."""
    problems = []
    for name in dict.fromkeys(name for each in table.values() for name in each["compared"]):
        values = {rank: each["compared"].get(name, "not installed") for rank, each in table.items()}
        expected = Counter(value for _, value in sorted(values.items())).most_common(1)[0][0]
        others = f", and {expected} on the others" if expected else ""
        problems += [
            f"rank {rank} on {table[rank]['host']} differs: its {name} is {value or 'none'}{others}"
            for rank, value in values.items()
            if value != expected
        ]
    return problems


def _time_all_reduces(options: argparse.Namespace) -> str:
    """Return a table of the time that an all-reduce takes with the job's backend, by size."""
    info = init_dist(options.launcher, options.backend, timeout=options.timeout)
    medians: dict[int, float] = {}
    for size in _SIZES:
        tensor, times = torch.zeros(size // 4, device=info.device), []
        for _ in range(_WARM_UP + _REPEATS):
            start = time.perf_counter()
            dist.all_reduce(tensor)
            synchronize_device(tensor.device)
            times.append(time.perf_counter() - start)
        medians[size] = statistics.median(times[_WARM_UP:])
    table = describe_speed(dict(enumerate(all_gather_object(medians))))
    destroy_dist()
    return f"all-reduce with {info.backend}:\n{table}"


def _report(info: DistInfo, table: Facts, problems: list[str], speed: str) -> None:
    parts = [
        f"mm-dist check: {len(table)} of {info.world_size} ranks, launcher {info.launcher}",
        format_table(["compared", "on rank 0"], table[0]["compared"].items()),
        *([speed] if speed else []),
        *(f"problem: {problem}" for problem in problems),
    ]
    if not problems:
        parts.append("passed: all ranks arrived, have equal software, and reach each other")
    print_text("\n\n".join(parts))


def describe_speed(times: Mapping[int, Mapping[int, float]]) -> str:
    """Return a table with the time and the bus bandwidth of the slowest rank, by size."""
    rows = []
    for size in times[0]:
        slowest = max(times, key=lambda rank: times[rank][size])
        seconds = times[slowest][size]
        bandwidth = size / seconds / 1e9 * 2 * (len(times) - 1) / len(times)
        rows.append([str(size), f"{seconds * 1e3:.3f}", f"{bandwidth:.3f}", str(slowest)])
    return format_table(["bytes", "median ms", "bus GB/s", "slowest rank"], rows)
