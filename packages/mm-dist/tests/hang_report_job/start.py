"""Start the ranks of several jobs as forks of one process, which has imported torch for all.

Usage: ``start.py FOLDER JOBS``, where ``JOBS`` maps, in JSON, each mode of ``train.py`` to how many
ranks there are and which of them end by themselves. Each job prints into the file of its mode. In
the end, the exit statuses of those ranks are printed as JSON.
"""

# ruff: noqa: T201 (what it prints is what is looked at)

import contextlib
import json
import os
import runpy
import signal
import socket
import sys
from pathlib import Path

import torch.distributed.fsdp

import mm_dist  # noqa: F401 (so that no rank has to)

# DDP imports both; a rank that imports while the others wait hangs, for them.
with contextlib.suppress(ImportError):  # before torch 2.0
    import torch._dynamo  # noqa: F401

FOLDER = Path(sys.argv[1])


def find_free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def fork_rank(mode, rank, num_ranks, port):
    """Return the process id of a new rank; in the new process, ``None``."""
    pid = os.fork()
    if pid:
        return pid
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": num_ranks}
    place |= {"LOCAL_WORLD_SIZE": num_ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in place.items()})
    output = os.open(FOLDER / mode, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.argv[1:] = [mode]
    return None


def fork_ranks(jobs):
    """Return the process ids of the ranks of each job; in a new process, ``None``."""
    pids = {}
    for mode, (num_ranks, _) in jobs.items():
        port = find_free_port()
        pids[mode] = []
        for rank in range(num_ranks):
            pids[mode].append(fork_rank(mode, rank, num_ranks, port))
            if pids[mode][-1] is None:
                return None
    return pids


def end(jobs, pids):
    """Wait for the ranks that end, end the others, and say how it went."""
    statuses, others = {}, []
    for mode, (num_ranks, ending) in jobs.items():
        ends = [os.waitpid(pids[mode][rank], 0)[1] for rank in ending]
        statuses[mode] = [os.waitstatus_to_exitcode(each) for each in ends]
        others += [pids[mode][rank] for rank in range(num_ranks) if rank not in ending]
    for pid in others:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    print(json.dumps(statuses))


def main():
    jobs = json.loads(sys.argv[2])
    pids = fork_ranks(jobs)
    if pids is None:
        # An exception that nobody catches ends a rank as it would end a script.
        runpy.run_path(str(Path(__file__).with_name("train.py")), run_name="__main__")
    else:
        end(jobs, pids)


main()
