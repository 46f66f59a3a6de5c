"""A rank of a job of which some hang, in the way that the first argument says."""

# ruff: noqa: T201 (what it prints is what is looked at)

import atexit
import os
import signal
import sys
import threading
import time
import warnings
from datetime import timedelta
from pathlib import Path

import data
import torch
import torch.distributed as dist

import mm_dist

TIMEOUT_S = 5
ONE = torch.ones(3)
# Since when this rank has waited for the others, by the monotonic clock.
waiting_since = [time.monotonic()]


def begin_to_wait():
    """Note the time, for what is printed at the end."""
    waiting_since[0] = time.monotonic()


def skip(rank):
    for iteration in range(1, 5):
        mm_dist.mark_iteration(iteration)
        if rank == 1 and iteration == 3:
            data.load()
        begin_to_wait()
        dist.all_reduce(ONE)  # SKIPPED


def backward(rank):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    # The third, because torch builds the buckets anew, by other collectives, in the second.
    for iteration in range(3):
        if rank == 1 and iteration == 2:
            data.load()
        begin_to_wait()
        model(torch.ones(2, 8)).sum().backward()  # BACKWARD


def mismatch(rank):
    dist.all_reduce(ONE)
    begin_to_wait()
    if rank == 1:
        dist.broadcast(ONE, 0)  # BROADCAST
    dist.all_reduce(ONE)  # REDUCED


def chain(rank):
    pairs = [
        dist.new_group(pair, timeout=timedelta(seconds=TIMEOUT_S)) for pair in ([0, 1], [1, 2])
    ]
    dist.all_reduce(ONE)
    begin_to_wait()
    if rank == 2:
        data.load()
    if rank == 1:
        dist.all_reduce(ONE, group=pairs[1])  # SECOND
    dist.all_reduce(ONE, group=pairs[0])  # FIRST


def freeze(rank):
    dist.all_reduce(ONE)
    begin_to_wait()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(ONE)  # FROZEN


def steady(rank):
    store = dist.distributed_c10d._get_default_store()
    dist.barrier()
    num_keys = store.num_keys()
    end = time.monotonic() + 0.6 * TIMEOUT_S
    is_over = torch.tensor(0)
    while not is_over:
        time.sleep(0.02)
        is_over = torch.tensor(int(time.monotonic() > end))
        dist.broadcast(is_over, 0)
    assert store.num_keys() == num_keys, "a job that goes on leaves the store alone"
    assert num_watchers() == 1
    # Computing for longer than a collective may take is no hang.
    time.sleep(1.3 * TIMEOUT_S)
    dist.all_reduce(ONE)
    mm_dist.destroy_dist()
    assert num_watchers() == 0
    tell_finished(rank)


def again(rank):
    # gloo: a rank that leaves while the other still connects would end that one with an error.
    dist.barrier()
    time.sleep(0.05)
    # Past mm-dist, which only notices when it is called the next time.
    dist.destroy_process_group()
    mm_dist.init_dist(device_type="cpu", timeout=TIMEOUT_S)
    assert num_watchers() == 1
    dist.all_reduce(ONE)
    fork_while_the_watcher_is_busy()
    dist.all_reduce(ONE)
    tell_finished(rank)


def fork_while_the_watcher_is_busy():
    """Check that the exit handlers of a child wait for nothing that only its parent has."""
    busy = mm_dist._state.state.own.hang_report._wake_up._cond
    # Whoever holds this lock at that moment does not exist in the child.
    busy.acquire()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's own, of forks beside threads
        child = os.fork()
    if not child:
        atexit._run_exitfuncs()
        os._exit(0)  # torch may hang where Python ends by itself
    busy.release()
    assert os.waitpid(child, 0)[1] == 0


def tell_finished(rank):
    # In one piece: both ranks write into the same pipe, unbuffered.
    sys.stdout.write(f"finished {rank}\n")


def off(rank):
    assert num_watchers() == 0
    assert not [name for name in sys.modules if name == "mm_dist.diagnose._hang_report"]
    dist.all_reduce(ONE)
    tell_finished(rank)


def num_watchers():
    return [thread.name for thread in threading.enumerate()].count("mm_dist-hang-report")


def meet():
    """Wait for the other ranks of the job: the timeout is short, and importing torch may not be."""
    if "MEETING_FOLDER" not in os.environ:
        return
    folder = Path(os.environ["MEETING_FOLDER"])
    (folder / os.environ["RANK"]).touch()
    while len(list(folder.iterdir())) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.01)


def main():
    mode = sys.argv[1]
    meet()
    is_on = None if mode != "off" else False
    info = mm_dist.init_dist(device_type="cpu", timeout=TIMEOUT_S, hang_report=is_on)
    hook = sys.excepthook

    def report(*arguments):
        hook(*arguments)
        seconds = time.monotonic() - waiting_since[0]
        print(f"ended after {seconds:.1f} s", file=sys.stderr, flush=True)

    sys.excepthook = report
    globals()[mode](info.rank)


main()
