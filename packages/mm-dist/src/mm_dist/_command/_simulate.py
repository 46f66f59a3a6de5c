"""``mm-dist simulate``: time and memory of one rank of a job that is larger than this machine."""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from mm_dist._command._output import check_json_target, format_table, write_json, write_line
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
        for name, act in simulated.steps(is_sharding=options.shard):
            start = time.perf_counter()
            act()
            seconds = time.perf_counter() - start
            rows.append({"step": name, "seconds": seconds, "resident_bytes": resident_bytes()})
    result = {
        "what": _LABEL,
        "world_size": options.world_size,
        "rank": options.rank,
        "local_world_size": local_world_size,
        "seconds": sum(row["seconds"] for row in rows),
        "resident_bytes": max(row["resident_bytes"] for row in rows),
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


def resident_bytes() -> int:
    """Return the memory of this process that is in use; 0 where the system does not tell."""
    try:
        import resource  # noqa: PLC0415 (not on Windows)
    except ImportError:
        return 0
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        # macOS: the peak, in bytes.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return pages * resource.getpagesize()


def _format(result: dict[str, Any]) -> str:
    rows = [
        [
            row["step"],
            f"{row['seconds'] * 1e3:.1f}",
            f"{row['resident_bytes'] / _MIB:.1f}",
        ]
        for row in result["steps"]
    ]
    title = (
        f"rank {result['rank']} of {result['world_size']}, {result['local_world_size']} per "
        f"machine ({_LABEL})"
    )
    summary = f"start: {result['seconds']:.2f} s, {result['resident_bytes'] / _MIB:.1f} MiB"
    return "\n\n".join([title, format_table(["step", "ms", "memory MiB"], rows), summary])
