"""Processes that end in spite of gloo's threads, and stores for them."""

import os
import socket
import time
from datetime import timedelta

import torch.distributed as dist
import torch.multiprocessing as mp


def open_store(port=0, *, is_server=False):
    return dist.TCPStore(
        "127.0.0.1",
        port,
        is_master=is_server,
        wait_for_workers=False,
        timeout=timedelta(seconds=300),
    )


def leave():
    # gloo's threads release what they hold only after a while.
    time.sleep(0.05)
    os._exit(0)


def find_free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def run_ranks(target, world_size):
    """Run ``target(rank, world_size, port, barrier, results)`` in processes; return the results."""
    context = mp.get_context("spawn")
    barrier, results, port = context.Barrier(world_size), context.SimpleQueue(), find_free_port()
    ranks = [
        context.Process(target=target, args=(rank, world_size, port, barrier, results))
        for rank in range(world_size)
    ]
    for process in ranks:
        process.start()
    found = [results.get() for _ in ranks]
    for process in ranks:
        process.join()
    return found


def leave_when_read(results):
    while not results.empty():
        time.sleep(0.01)
    leave()


def take_place(rank, world_size, port):
    """Set the variables that torchrun would."""
    place = {"RANK": rank, "WORLD_SIZE": world_size, "LOCAL_RANK": rank}
    place |= {"LOCAL_WORLD_SIZE": world_size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in place.items()})
