"""Groups of gloo whose ranks are threads of one process, so that there can be many."""

import resource
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
import torch.multiprocessing as mp

from scaling.processes import leave_when_read, open_store


def make_mesh(num_ranks):
    """Connect ranks of gloo, one thread each; return seconds, memory and open files."""
    server = open_store(is_server=True)
    stores = [open_store(server.port) for _ in range(num_ranks)]
    files, memory = count_files(), resident()
    limit = timedelta(seconds=300)

    def connect(rank):
        return dist.ProcessGroupGloo(stores[rank], rank, num_ranks, limit)

    with ThreadPoolExecutor(num_ranks) as pool:
        begin = time.perf_counter()
        groups = list(pool.map(connect, range(num_ranks)))
        seconds = time.perf_counter() - begin
    found = seconds, resident() - memory, count_files() - files
    time.sleep(0.2)
    del groups
    return found


def run_mesh(num_ranks, results):
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    results.put(make_mesh(num_ranks))
    leave_when_read(results)


def measure_mesh(num_ranks):
    context = mp.get_context("spawn")
    results = context.SimpleQueue()
    process = context.Process(target=run_mesh, args=(num_ranks, results))
    process.start()
    found = results.get()
    process.join()
    return found


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def count_files():
    return sum(1 for _ in Path("/proc/self/fd").iterdir())
