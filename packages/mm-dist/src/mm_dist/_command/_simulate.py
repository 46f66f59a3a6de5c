"""``mm-dist simulate``: time and memory of one rank of a job that is larger than this machine."""

import argparse
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

from mm_dist._command._output import check_json_target, format_table, write_json, write_line
from mm_dist._command._simulate_memory import own_objects, resident_bytes
from mm_dist._command._simulate_steps import SimulatedRank, import_factory
from mm_dist._errors import ConfigError

_LABEL = "simulated: fake process group, no other ranks, no rendezvous, no communication"
_MIB = 2**20


def simulate_rank(options: argparse.Namespace) -> int:
    """Go through the start of one rank, and print what each step took.

    Returns:
        0.

    Raises:
        ConfigError: If an option cannot be used.
        TorchVersionError: If torch has no fake process group, or cannot shard.
    """
    local_world_size = _check_sizes(options)
    check_json_target(options.json)
    # As python -m does: a model beside the configuration can be named.
    sys.path.insert(0, str(Path.cwd()))
    factory = import_factory(options.model)
    simulated = SimulatedRank(options.rank, options.world_size, local_world_size, factory)
    with simulated.environment():
        rows: list[dict[str, Any]] = [
            {"step": "before", "seconds": 0.0, "resident_bytes": resident_bytes()}
        ]
        rows += time_steps(simulated, is_sharding=options.shard)
        own = trace_steps(simulated, is_sharding=options.shard)
    for row in rows[1:]:
        row.update(own[row["step"]])
    result = {
        "what": _LABEL,
        "world_size": options.world_size,
        "rank": options.rank,
        "local_world_size": local_world_size,
        "seconds": sum(row["seconds"] for row in rows),
        "resident_bytes": max(row["resident_bytes"] for row in rows),
        "own_bytes": max(row["own_bytes"] for row in rows[1:]),
        "steps": rows,
    }
    if options.json:
        write_json(result, options.json)
    if options.json != "-":
        write_line(_format(result))
    return 0


def _check_sizes(options: argparse.Namespace) -> int:
    world_size, rank, local = options.world_size, options.rank, options.local_world_size
    if world_size < 1 or local < 1:
        raise ConfigError(
            f"--world-size={world_size} and --local-world-size={local} must both be at least 1."
        )
    if not 0 <= rank < world_size:
        raise ConfigError(f"--rank={rank} is none of {world_size}; ranks count from 0.")
    return min(int(local), int(world_size))


def time_steps(simulated: SimulatedRank, *, is_sharding: bool) -> list[dict[str, Any]]:
    """Go through the steps; return seconds and the memory in use after each."""
    rows = []
    for name, act in simulated.steps(is_sharding=is_sharding):
        start = time.perf_counter()
        act()
        seconds = time.perf_counter() - start
        rows.append({"step": name, "seconds": seconds, "resident_bytes": resident_bytes()})
    return rows


def trace_steps(simulated: SimulatedRank, *, is_sharding: bool) -> dict[str, dict[str, int]]:
    """Go through the steps once more, slowly; return what mm-dist's own objects keep after each."""
    found = {}
    tracemalloc.start()
    try:
        for name, act in simulated.steps(is_sharding=is_sharding):
            act()
            size, count = own_objects()
            found[name] = {"own_bytes": size, "own_objects": count}
    finally:
        tracemalloc.stop()
    return found


def _format(result: dict[str, Any]) -> str:
    rows = [
        [
            row["step"],
            f"{row['seconds'] * 1e3:.1f}",
            f"{row['resident_bytes'] / _MIB:.1f}",
            f"{row['own_bytes'] / 1024:.1f}" if "own_bytes" in row else "",
        ]
        for row in result["steps"]
    ]
    title = (
        f"rank {result['rank']} of {result['world_size']}, {result['local_world_size']} per "
        f"machine ({_LABEL})"
    )
    summary = (
        f"start: {result['seconds']:.2f} s, {result['resident_bytes'] / _MIB:.1f} MiB, of "
        f"which objects of mm-dist {result['own_bytes'] / 1024:.1f} KiB"
    )
    header = ["step", "ms", "memory MiB", "of mm-dist KiB"]
    return "\n\n".join([title, format_table(header, rows), summary])
