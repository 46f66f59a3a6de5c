"""The constants of ``scale.py`` that one machine can measure.

Prints a line for each, with the name that ``scale.py --NAME`` takes:

* ``import_seconds``, ``import_files``, ``import_bytes``: new processes import torch and mm-dist,
  once the files are cached. Counted are the paths that Python looks at, folders that it lists,
  files that it opens, and libraries that are mapped in the end.
* ``round_trip``: one client asks torch's store again and again. ``store_exchange``: four processes
  do so at once, so that the store's thread is never idle. ``store_bandwidth``: they get values of
  1 MiB.
* ``store_connection_here``, ``_mean``: clients are opened one after the other. The store's thread
  looks up the name of each; where the mean is far above the median, the name server lost messages,
  each of which costs 5 s. (The command's default is that of a published benchmark on a network.)
* ``connections``, ``questions``: what the store is asked while a rank calls ``init_dist``, counted
  by a relay between the rank and the store; of two and of four ranks, to see what one more adds.
* ``gloo_pair``: ranks that are threads of one process make a group of gloo; its time, without that
  of the store's questions. Also the memory and the open files of each end of a connection.
* ``save_bandwidth``, ``sync_seconds``, ``write_bandwidth``: torch.save into memory, fsync of a
  small file and its folder, and 1 GiB to the disk with fsync.

Run: ``python scale_constants.py [--json FILE]``. It asserts nothing.
"""

# ruff: noqa: T201 (printing is what it is for)

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.multiprocessing as mp
from scaling.joining import count_joining
from scaling.mesh import measure_mesh
from scaling.processes import open_store

_MIB = 2**20
_QUESTIONS = 4000
_CLIENTS = 4
_IMPORT = """
import importlib._bootstrap_external as external, json, os, sys, time
counts = {"stat": 0, "open": 0, "list": 0}
sizes = {}
path_stat = external._path_stat
def counted(path):
    counts["stat"] += 1
    return path_stat(path)
external._path_stat = counted
def hear(event, arguments):
    if event == "open" and isinstance(arguments[0], str):
        counts["open"] += 1
        if os.path.isfile(arguments[0]):
            sizes[arguments[0]] = os.path.getsize(arguments[0])
    elif event == "os.listdir":
        counts["list"] += 1
if sys.argv[1] == "count":
    sys.addaudithook(hear)
begin = time.perf_counter()
import torch, torch.distributed, mm_dist
from mm_dist import init_dist
seconds = time.perf_counter() - begin
libraries = {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
resident = 0
for line in open("/proc/self/smaps"):
    word = line.split()
    if word[0].count("-") == 1 and not word[0].endswith(":"):
        is_library = ".so" in word[-1]
    elif word[0] == "Rss:" and is_library:
        resident += int(word[1]) * 1024
print(json.dumps([seconds, counts, len(libraries), sum(sizes.values()), resident]))
"""


def measure_imports():
    runs = [run_import("time") for _ in range(3)]
    _, counts, libraries, read, mapped = run_import("count")
    return {
        "import_seconds": min(run[0] for run in runs),
        "import_files": sum(counts.values()) + libraries,
        "import_bytes": read + mapped,
        "import_counts": {**counts, "libraries": libraries, "read": read, "mapped": mapped},
    }


def run_import(mode):
    command = [sys.executable, "-c", _IMPORT, mode]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def measure_store():
    server = open_store(is_server=True)
    server.set("value", b"x" * _MIB)
    clients, connecting = [], []
    for _ in range(200):
        begin = time.perf_counter()
        clients.append(open_store(server.port))
        connecting.append(time.perf_counter() - begin)
    first = clients[0]
    times = [time_call(lambda: first.add("a", 0), 500) for _ in range(7)]
    return {
        "round_trip": statistics.median(times),
        "store_connection_here": statistics.median(connecting),
        "store_connection_mean": statistics.mean(connecting),
        "store_exchange": 1 / crowd(server.port, ask),
        "store_bandwidth": _MIB * crowd(server.port, fetch),
    }


def crowd(port, act):
    """Return how many calls of ``act`` several processes together get done per second."""
    context = mp.get_context("spawn")
    barrier, results = context.Barrier(_CLIENTS), context.SimpleQueue()
    processes = [
        context.Process(target=act, args=(port, barrier, results)) for _ in range(_CLIENTS)
    ]
    for process in processes:
        process.start()
    spans = [results.get() for _ in processes]
    for process in processes:
        process.join()
    begins, ends, counts = zip(*spans, strict=True)
    return sum(counts) / (max(ends) - min(begins))


def ask(port, barrier, results):
    store = open_store(port)
    barrier.wait()
    begin = time.monotonic()
    for _ in range(_QUESTIONS):
        store.add("a", 0)
    results.put((begin, time.monotonic(), _QUESTIONS))


def fetch(port, barrier, results):
    store = open_store(port)
    barrier.wait()
    begin = time.monotonic()
    for _ in range(100):
        store.get("value")
    results.put((begin, time.monotonic(), 100))


def time_call(function, times):
    begin = time.perf_counter()
    for _ in range(times):
        function()
    return (time.perf_counter() - begin) / times


def measure_gloo(exchange, bandwidth):
    """Return what a connection takes, without what the store takes for its questions."""
    num_ranks = 32
    seconds, memory, files = min(measure_mesh(num_ranks) for _ in range(3))
    in_store = num_ranks * (1 + 2 * num_ranks) * exchange
    in_store += num_ranks**2 * (168 + 8 * num_ranks) / bandwidth
    ends = num_ranks * (num_ranks - 1)
    return {
        # All cores work for all ranks here.
        "gloo_pair": max(seconds - in_store, 0.0) / ends * min(os.cpu_count(), num_ranks),
        "gloo_mesh_seconds": seconds,
        "gloo_mesh_in_store": in_store,
        "gloo_end_bytes": memory / ends,
        "gloo_end_files": files / ends,
    }


class Nowhere:
    """A file that keeps nothing."""

    def write(self, data):
        return memoryview(data).nbytes

    def flush(self):
        pass


def measure_saving():
    content = {"weights": [torch.zeros(8 * _MIB) for _ in range(16)]}
    size = 16 * 8 * _MIB * 4
    saving = min(time_call(lambda: torch.save(content, Nowhere()), 1) for _ in range(3))
    with tempfile.TemporaryDirectory(dir=".") as folder:
        path = Path(folder) / "file"
        syncing = statistics.median(
            time_call(lambda: write_whole(path, b"x"), 1) for _ in range(20)
        )
        block = bytes(64 * _MIB)
        begin = time.perf_counter()
        write_whole(path, *[block] * 16)
        writing = time.perf_counter() - begin
    return {
        "save_bandwidth": size / saving,
        "sync_seconds": syncing,
        "write_bandwidth": 16 * len(block) / writing,
    }


def write_whole(path, *blocks):
    with path.open("wb") as file:
        for block in blocks:
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the numbers there too")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = {"torch": torch.__version__, "python": platform.python_version()}
    found |= {"system": platform.release(), "cores": os.cpu_count()}
    found |= measure_imports()
    found |= measure_store()
    for world_size in (2, 4):
        # Ranks that wait ask again and again; the fewest questions are those that are needed.
        connections, questions = min(count_joining(world_size) for _ in range(3))
        found |= {f"connections_of_{world_size}": connections}
        found |= {f"questions_of_{world_size}": questions}
    found |= measure_gloo(found["store_exchange"], found["store_bandwidth"])
    found |= measure_saving()
    for name, value in found.items():
        print(f"{name:24} {value:.4g}" if isinstance(value, float) else f"{name:24} {value}")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
