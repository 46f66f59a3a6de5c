"""The formulas of ``scale.py`` against what happens: fitted on few ranks, compared with more.

All ranks are on this machine, which has fewer cores than there are ranks, so that what would happen
side by side happens in turn: with ``n`` ranks on ``c`` cores steps take ``n/c`` times as long, and
bytes too. That factor is the only thing that is added to the formulas here.

* ``mesh``: ranks of gloo that are threads of one process, from 8 to 128 of them. Fitted at 16 and
  32: the time of a question to the store, which is the formula's only unknown here.
* ``start``: processes that call ``init_dist`` at the same moment, from 2 to 16. Fitted at 2 and 4:
  a fixed part, and one for each rank.
* ``all-reduce``: gloo's, of 1 KiB to 16 MiB, on 2, 4 and 8 processes. Fitted at 2 and 4: a step's
  latency and the bandwidth.

Each row has the best of some runs, what the formula says, and by how much that is off.

Run: ``python scale_model.py [PART ...] [--json FILE]``. It prints, and asserts nothing.
"""

# ruff: noqa: T201 (printing is what it is for)

import argparse
import json
import os
import platform
import statistics
import time
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from scaling.mesh import measure_mesh
from scaling.model import Constants
from scaling.model.all_reduce import ring_all_reduce
from scaling.model.cluster import Cluster
from scaling.model.startup import gloo_value_bytes
from scaling.processes import leave, run_ranks, take_place

import mm_dist

_SIZES = (2**10, 2**14, 2**18, 2**20, 2**22, 2**24)
_MESHES, _STARTS, _RINGS = (8, 16, 32, 64, 128), (2, 4, 8, 16), (2, 4, 8)
_RUNS = 3


def compare_mesh():
    measured = {n: min(measure_mesh(n)[0] for _ in range(_RUNS)) for n in _MESHES}
    # Through the origin: one rank has nobody to connect to.
    exchange = statistics.mean(measured[n] / (n * (1 + 2 * n)) for n in (16, 32))
    rows = [row(n, measured[n], exchange * n * (1 + 2 * n), n in (16, 32)) for n in _MESHES]
    return {"exchange": exchange, "value_bytes": gloo_value_bytes(_MESHES[-1])}, rows


def compare_start():
    measured = {n: min(time_start(n) for _ in range(_RUNS)) for n in _STARTS}
    per_rank = (measured[4] - measured[2]) / 2
    fixed = measured[2] - 2 * per_rank
    rows = [row(n, measured[n], fixed + per_rank * n, n in (2, 4)) for n in _STARTS]
    return {"fixed": fixed, "per_rank": per_rank}, rows


def time_start(world_size):
    begins, ends = zip(*run_ranks(start, world_size), strict=True)
    return max(ends) - max(begins)


def start(rank, world_size, port, barrier, results):
    take_place(rank, world_size, port)
    torch.set_num_threads(1)
    barrier.wait()
    begin = time.monotonic()
    mm_dist.init_dist("pytorch", device_type="cpu", timeout=120)
    results.put((begin, time.monotonic()))
    barrier.wait()
    leave()


def compare_rings():
    measured = {n: time_rings(n) for n in _RINGS}
    latency, bandwidth = fit({key: measured[key] for key in (2, 4)})
    own = Constants(node_latency=latency, node_bandwidth=bandwidth)
    rows = [
        row(f"{n} x {size}", measured[n][size], predict(own, n, size), n in (2, 4))
        for n in _RINGS
        for size in _SIZES
    ]
    return {"node_latency": latency, "node_bandwidth": bandwidth}, rows


def predict(own, num_ranks, size):
    turns = max(1.0, num_ranks / os.cpu_count())
    slower = replace(
        own, node_latency=own.node_latency * turns, node_bandwidth=own.node_bandwidth / turns
    )
    return ring_all_reduce(size, Cluster(num_ranks, num_ranks, slower))


def fit(measured):
    """Return latency and bandwidth for which the squares of the relative errors are least."""
    parts, ones = [], []
    for num_ranks, times in measured.items():
        for size, seconds in times.items():
            step = predict(Constants(node_latency=1.0, node_bandwidth=1e30), num_ranks, 0)
            byte = predict(Constants(node_latency=1e-30, node_bandwidth=1.0), num_ranks, size)
            parts.append([step / seconds, byte / seconds])
            ones.append([1.0])
    tensor = torch.tensor(parts, dtype=torch.float64)
    # Columns of one size, or the solver would take the smaller one for nothing.
    scale = tensor.amax(0)
    found = torch.linalg.lstsq(tensor / scale, torch.tensor(ones, dtype=torch.float64)).solution
    latency, per_byte = (found.squeeze(1) / scale).tolist()
    return latency, 1 / per_byte


def time_rings(world_size):
    found = run_ranks(reduce, world_size)
    # Of each all-reduce the rank that took longest, and of these the fastest: other programs run
    # on this machine too.
    return {
        size: min(map(max, zip(*(times[size] for times in found), strict=True))) for size in _SIZES
    }


def reduce(rank, world_size, port, _, results):
    take_place(rank, world_size, port)
    torch.set_num_threads(1)
    mm_dist.init_dist("pytorch", device_type="cpu", timeout=300, hang_report=False)
    found = {}
    for size in _SIZES:
        tensor = torch.zeros(size // 4)
        times = []
        for _ in range(3 + (300 if size < 2**20 else 40)):
            dist.barrier()
            begin = time.perf_counter()
            dist.all_reduce(tensor)
            times.append(time.perf_counter() - begin)
        found[size] = times[3:]
    results.put(found)
    dist.barrier()
    leave()


def row(name, measured, expected, is_fitted):
    return {
        "ranks": name,
        "measured": measured,
        "formula": expected,
        "off": expected / measured - 1,
        "is_fitted": is_fitted,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help="mesh, start, all-reduce; all")
    parser.add_argument("--json", type=Path, help="write the numbers there too")
    arguments = parser.parse_args()
    report = {"torch": torch.__version__, "python": platform.python_version()}
    report["cores"] = os.cpu_count()
    for name, compare in (
        ("mesh", compare_mesh),
        ("start", compare_start),
        ("all-reduce", compare_rings),
    ):
        if arguments.parts and name not in arguments.parts:
            continue
        constants, rows = compare()
        report[name] = {"constants": constants, "rows": rows}
        print(f"{name}: " + ", ".join(f"{key} {value:.4g}" for key, value in constants.items()))
        for each in rows:
            kind = "fitted" if each["is_fitted"] else "predicted"
            print(
                f"  {each['ranks']!s:14} measured {each['measured'] * 1e3:10.3f} ms  {kind:9} "
                f"{each['formula'] * 1e3:10.3f} ms  {each['off']:+.0%}"
            )
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
